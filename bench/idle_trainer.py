"""A rank of bench/idle: trains for three rounds, and then as `mode` says: it is "idle", is "waiting" for the first rank, or is "training"."""
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster" / "trainers"))
import addend
from common import finish, gate, outcome, parameters, wants

PAUSE_S = 1e-3  # between two rounds of "training"


def main():
    mode = parameters()["mode"]
    values = np.ones(1000, np.float32)

    def run():
        addend.init()
        for _ in range(3):
            addend.push_pull(values, "tensor", op=addend.Sum)
        gate("running")
        if mode == "idle" or (mode == "waiting" and addend.rank() == 0):
            time.sleep(parameters()["seconds"])
        if mode == "waiting":
            addend.push_pull(values, "tensor", op=addend.Sum)
        while mode == "training" and not addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]:
            addend.push_pull(values, "tensor", op=addend.Sum)
            time.sleep(PAUSE_S)
        addend.shutdown()

    finish(outcome(run))


main()
