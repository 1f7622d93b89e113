"""Pushes random tensors until the gate "stop" is open or the job fails, and reports the last round of each tensor.

Every result is compared with the reference, element by element: the sum of all nodes, or of those that the parameter "left" names.
"""
import hashlib
import os

import numpy as np

import addend
from common import RANK, file, finish, gate, outcome, parameters, wants
from tests.support import reference

TENSORS = [("float32", "Sum", 50_003), ("float16", "Average", 5_001), ("int64", "Sum", 1), ("float32", "Average", 40_000)]
VARIANTS = 3
SIZE, LOCAL_SIZE = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])


def contribution(tensor, variant, rank):
    dtype, _, size = TENSORS[tensor]
    return reference.random_values(dtype, size, [tensor, variant, rank])


def expected(tensor, variant, nodes):
    dtype, op, _ = TENSORS[tensor]
    return reference.push_pull(op, dtype, [
        [contribution(tensor, variant, node * LOCAL_SIZE + rank) for rank in range(LOCAL_SIZE)] for node in nodes])


def bits(array):
    return array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])


def main():
    left = parameters().get("left", list(range(SIZE // LOCAL_SIZE)))
    right = [[[bits(expected(t, v, nodes)) for nodes in (range(SIZE // LOCAL_SIZE), left)] for v in range(VARIANTS)]
             for t in range(len(TENSORS))]
    mine = [[contribution(t, v, RANK) for v in range(VARIANTS)] for t in range(len(TENSORS))]
    # By tensor: the number of completed rounds, and a digest of all their bits.
    report = {"rounds": [0] * len(TENSORS), "wrong": [], "without": 0}
    digests = [hashlib.sha256() for _ in TENSORS]

    def run():
        addend.init()
        step, failed, stop = 0, None, False
        while not stop and failed is None:
            variant = step % VARIANTS
            handles = {}
            for t, (_, op, _) in enumerate(TENSORS):
                try:
                    handles[t] = addend.push_pull_async(mine[t][variant], f"tensor{t}", op=getattr(addend, op), priority=t)
                except addend.Error as error:
                    failed = error
            for t, handle in handles.items():  # rounds under way may have completed
                try:
                    result = bits(addend.synchronize(handle))
                except addend.Error as error:
                    failed = error
                    continue
                every, without = right[t][variant]
                if not ((result == every) | (result == without)).all():
                    report["wrong"].append([step, t])
                report["without"] += bool((result != every).any())
                report["rounds"][t] += 1
                digests[t].update(result.tobytes())
            if failed is None:
                stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]
            step += 1
            file("rounds").write_text(str(step))
            if step == 3:
                gate("running")
        if failed is not None:
            raise failed
        report["present"] = addend.nodes_present()
        addend.shutdown()

    ended = outcome(run)
    finish({**ended, **report, "digests": [digest.hexdigest() for digest in digests]})


main()
