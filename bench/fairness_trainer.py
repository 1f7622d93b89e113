"""A rank of bench/fairness: pushes one tensor in place, round after round, notes when each round ended and which sums were wrong."""
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster" / "trainers"))
import addend
from common import file, finish, gate, outcome, parameters, wants

STRIDE = 1009  # of the elements that are looked at in every round; in the last one all are


def main():
    ends, wrong = [], []

    def run():
        addend.init()
        values = addend.empty(parameters()["bytes"] // 4, np.float32, "tensor", op=addend.Sum)
        values[:] = 1
        stop = False
        while not stop:
            handle = addend.push_pull_async(values, "tensor", op=addend.Sum)
            stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]  # all in the same round
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
