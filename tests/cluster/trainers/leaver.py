"""Rank `leaver` leaves by shutdown() while the others go on with operations that need it: reports each rank's error, and its delay."""
import time

import numpy as np

import addend
from common import RANK, finish, gate, outcome, parameters


def main():
    p = parameters()
    leaves = RANK == p["leaver"]
    report = {"sums": []}

    def add(name, elements=5):
        report["sums"].append(float(addend.push_pull(np.ones(elements, np.float32), name, op=addend.Sum)[0]))

    def run():
        addend.init()
        for _ in range(3):
            add("before")
        if leaves:
            if p.get("pushes_last"):  # its contribution to the last round is complete, and it does not wait for the others
                if p.get("pauses"):
                    gate("pause")
                handle = addend.push_pull_async(np.ones(p.get("elements", 5), np.float32), "last", op=addend.Sum)
                if p.get("waits_for_last"):
                    addend.synchronize(handle)
            addend.shutdown()
            gate("left")
            return
        gate("left")
        if p.get("pushes_last"):
            add("last", p.get("elements", 5))
        if not p.get("ends"):
            add("further" if p.get("new_tensor") else "before")
        addend.shutdown()

    began = time.monotonic()
    result = outcome(run)
    finish({**result, **report, "seconds": time.monotonic() - began})


main()
