"""Pushes a tensor of ones round after round, and records every sum that differs from the number of ranks, until the gate "stop" is open."""
import os

import numpy as np

import addend
from common import file, finish, gate, outcome, parameters, wants

SIZE = int(os.environ["WORLD_SIZE"])


def main():
    p = parameters()
    ones = np.ones(p["elements"], np.float32)
    report = {"rounds": 0, "wrong": []}

    def run():
        addend.init()
        stop = False
        while not stop:
            total = addend.push_pull(ones, "ones", op=addend.Sum)
            if not (total == SIZE).all():
                report["wrong"].append([report["rounds"] + 1, float(total[0])])
            stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]
            report["rounds"] += 1
            file("rounds").write_text(str(report["rounds"]))
            if report["rounds"] == 3:
                gate("running")
        addend.shutdown()

    finish({**outcome(run), **report})


main()
