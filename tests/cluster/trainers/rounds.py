"""Pushes random tensors round after round and compares every result with the reference, until the gate "stop" is open. The parameter `kind`:
of the values, and `variants`, their number; `smaller`: by which the sizes are divided, since each trainer makes the values of all; `wire`: the
type in which sums and averages of float32 travel; `ranks_of_a_node`: of an agent's, if not those of the launcher's.
"""
import os

import numpy as np

import addend
from common import RANK, file, finish, gate, outcome, parameters, wants
from tests.support import reference

KINDS = {"random": reference.random_values, "mixed": reference.mixed_values}
p = parameters()
TENSORS = [(dtype, op, -(-size // p.get("smaller", 1))) for dtype, op, size in (
    ("float32", "Sum", 100_003), ("float16", "Average", 5_001), ("int64", "Sum", 1), ("float32", "Average", 40_000))]
VARIANTS = p.get("variants", 5)  # of the values, in turn
SIZE, LOCAL_SIZE = int(os.environ["WORLD_SIZE"]), p.get("ranks_of_a_node") or int(os.environ["LOCAL_WORLD_SIZE"])


def contribution(tensor, variant, rank):
    dtype, _, size = TENSORS[tensor]
    return KINDS[p.get("kind", "random")](dtype, size, [tensor, variant, 0, rank])


def expected(tensor, variant):
    dtype, op, _ = TENSORS[tensor]
    nodes = [[contribution(tensor, variant, rank) for rank in range(node, node + LOCAL_SIZE)] for node in range(0, SIZE, LOCAL_SIZE)]
    return reference.push_pull(op, dtype, nodes, p.get("wire") if dtype == "float32" else None)


def main():
    mine = [[contribution(t, v, RANK) for v in range(VARIANTS)] for t in range(len(TENSORS))]
    right = [[expected(t, v).tobytes() for v in range(VARIANTS)] for t in range(len(TENSORS))]
    report = {"rounds": 0, "wrong": []}

    def run():
        addend.init()
        stop = False
        while not stop:
            variant = report["rounds"] % VARIANTS
            handles = [addend.push_pull_async(mine[t][variant], f"tensor{t}", op=getattr(addend, op), priority=t)
                       for t, (_, op, _) in enumerate(TENSORS)]
            stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]  # all ranks stop in the same round
            for t, handle in enumerate(handles):
                if addend.synchronize(handle).tobytes() != right[t][variant]:
                    report["wrong"].append([report["rounds"], t])
            report["rounds"] += 1
            file("rounds").write_text(str(report["rounds"]))
            if report["rounds"] == p.get("gate_after", 3):
                gate("running")
        addend.shutdown()

    finish({**outcome(run), **report})


main()
