"""A rank of bench/failover: pushes a tensor in a loop, records the end of each round and the rounds with wrong sums."""
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster" / "trainers"))
import addend
from common import file, finish, gate, outcome, parameters, wants


def main():
    # No encoding makes them shorter.
    values = np.random.default_rng(7).standard_normal(parameters()["bytes"] // 4, np.float32)
    ends, wrong = [], []

    def run():
        addend.init()
        expected = values.copy()
        for _ in range(addend.size() - 1):
            expected += values
        stop = False
        while not stop:
            handle = addend.push_pull_async(values, "tensor", op=addend.Sum)
            # All ranks stop in the same round.
            stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]
            if not np.array_equal(addend.synchronize(handle), expected):
                wrong.append(len(ends))
            ends.append(time.monotonic())
            file("rounds").write_text(str(len(ends)))
            if len(ends) == 3:
                gate("running")
        addend.shutdown()

    finish({**outcome(run), "ends": ends, "wrong": wrong})


main()
