"""Every rank adds 1 to its own elements as fast as it can; every answer must have exactly its own count there.

The counts of other ranks never fall, and at the end every rank's count is the number of its pushes.
"""
import os

import numpy as np

import addend
from common import RANK, file, finish, gate, outcome, parameters, shared, wants

SIZE = int(os.environ["WORLD_SIZE"])
# The file's size is the last round of the node, whose ranks go through its rounds together.
LAST = shared(f"last.{os.environ['GROUP_RANK']}")
ELEMENTS = parameters().get("elements", {"large": 250_007, "small": 12})


def main():
    p = parameters()
    report = {"pushed": 0, "wrong": []}
    mine = {name: np.array(np.arange(n) % SIZE == RANK, np.float32) for name, n in ELEMENTS.items()}
    highest = {name: np.zeros(SIZE) for name in ELEMENTS}

    def counts(name, values):
        """Each rank's lowest count (partitions are independent of each other), and whether this rank's is the same everywhere."""
        lowest = np.array([values[rank::SIZE].min() for rank in range(SIZE)])
        return lowest, lowest[RANK] == values[RANK::SIZE].max()

    def run():
        addend.init()
        while not (LAST.exists() and LAST.stat().st_size == report["pushed"]):
            if os.environ["LOCAL_RANK"] == "0" and wants("stop"):
                LAST.write_bytes(bytes(report["pushed"] + 1))  # written before that push, so that all ranks know when it has ended
            handles = {name: addend.push_pull_async(one, name, op=addend.Accumulate) for name, one in mine.items()}
            report["pushed"] += 1
            for name, handle in handles.items():
                now, one_count = counts(name, addend.synchronize(handle))
                if not p.get("losses") and (not one_count or now[RANK] != report["pushed"]):
                    report["wrong"].append([name, report["pushed"], now.tolist()])
                if (now < highest[name]).any() and not p.get("losses"):
                    report["wrong"].append([name, report["pushed"], "fallen to", now.tolist()])
                highest[name] = now
            file("rounds").write_text(str(report["pushed"]))
            if report["pushed"] == 3:
                gate("running")
        if p.get("losses"):
            return
        pushed = addend.push_pull(np.eye(SIZE, dtype=np.int64)[RANK] * report["pushed"], "pushed", op=addend.Sum)
        for name, one in mine.items():
            last = addend.push_pull(np.zeros_like(one), name, op=addend.Accumulate)
            if not (last == pushed[np.arange(len(last)) % SIZE]).all():
                report["wrong"].append([name, "at the end", counts(name, last)[0].tolist(), pushed.tolist()])
        addend.shutdown()

    finish({**outcome(run), **report})


main()
