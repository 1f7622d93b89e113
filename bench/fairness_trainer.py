"""A rank of bench/fairness: pushes a tensor in place in a loop, records the end of each round and the rounds with wrong sums."""
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster" / "trainers"))
import addend
from common import file, finish, gate, outcome, parameters, wants

# The stride between the elements that are checked in every round; the last round checks all elements.
STRIDE = 1009


def main():
    ends, wrong = [], []

    def run():
        addend.init()
        values = addend.empty(parameters()["bytes"] // 4, np.float32, "tensor", op=addend.Sum)
        values[:] = 1
        stop = False
        while not stop:
            handle = addend.push_pull_async(values, "tensor", op=addend.Sum)
            # All ranks stop in the same round.
            stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]
            result = addend.synchronize(handle, copy=False)
            if not (result[::1 if stop else STRIDE] == addend.size()).all():
                wrong.append(len(ends))
            ends.append(time.monotonic())
            if len(ends) == 3:
                file("rounds").write_text("3")
                gate("running")
        addend.shutdown()

    finish({**outcome(run), "ends": ends, "wrong": wrong})


main()
