"""Starts up, makes a push-pull as the parameters prescribe, and reports the result of both."""
import numpy as np

import addend
from common import RANK, finish, gate, outcome, parameters


def main():
    p = parameters()
    mine = {**p, **p.get("rank", {}).get(str(RANK), {})}
    report = {"init": outcome(addend.init)}
    if report["init"]["error"] is None:
        if p.get("together"):  # otherwise a rank may fail before another rank has begun
            addend.barrier()
        values = np.ones(mine.get("shape", [4]), mine.get("dtype", "float32"))
        op = getattr(addend, mine.get("op", "Sum"))
        calls = mine.get("calls", ["push_pull"])
        for call in calls:
            if call == "push_pull":
                report[call] = outcome(lambda: addend.push_pull(values, mine.get("name", "w"), op=op))
            elif call.startswith("gate "):
                gate(call.split()[1])
            elif call == "again":  # after an error every later call fails in the same way
                report[call] = outcome(lambda: addend.push_pull(np.ones(4, np.float32), "other", op=addend.Sum))
            elif call == "shutdown":
                report[call] = outcome(addend.shutdown)
            elif call == "late":
                report[call] = outcome(lambda: addend.push_pull(values, "late", op=op))
    finish(report)


main()
