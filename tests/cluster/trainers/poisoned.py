"""Push-pulls two tensors several times; a rank's value turns infinite or NaN at a known place, and from the next round on on all ranks."""
import numpy as np

import addend
from common import RANK, finish, gate, parameters


def main():
    p = parameters()
    addend.init()
    carried = np.zeros(2000, dtype=p["dtype"])
    for round_ in range(1, p["rounds"] + 1):
        first = np.full(5000, 1, dtype=p["dtype"])
        second = carried + np.dtype(p["dtype"]).type(p.get("value", 1))
        if RANK == p.get("rank") and round_ == p["round"]:
            second[p["element"]] = np.float32(p["poison"])
        addend.push_pull(first, "first", op=addend.Sum)
        carried = addend.push_pull(second, "second", op=addend.Sum)
        if "value" in p:
            carried = np.zeros_like(carried)
    gate("done")
    addend.shutdown()
    finish({"last": float(carried[0])})


main()
