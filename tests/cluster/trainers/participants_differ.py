"""A rank names other participants than the others do, or a rank leaves: reports each rank's error."""
import time

import numpy as np

import addend
from common import RANK, finish, gate, outcome, parameters


def main():
    p = parameters()
    report = {}

    def run():
        addend.init()
        for name, ranks in p["tensors"][str(RANK)]:
            if name == "gate":
                gate("left")
                continue
            time.sleep(p.get("pauses", {}).get(f"{RANK} {name}", 0))
            try:
                addend.push_pull(np.ones(3, np.float32), name, op=addend.Sum, participants=ranks)
                report[name] = "ok"
            except addend.Error as error:
                report[name] = f"{type(error).__name__}: {error}"
        addend.shutdown()
        if p.get("leaver") == RANK:
            gate("left")

    result = outcome(run)
    finish({**result, "tensors": report})


main()
