"""Moves a given number of bytes per round, in some tensors, and checks the sums."""
import numpy as np

import addend
from common import finish, gate, parameters


def main():
    p = parameters()
    addend.init()
    rank, size = addend.rank(), addend.size()
    elements = p["bytes"] // p["tensors"] // 4
    names = [f"tensor{i}" for i in range(p["tensors"])]
    if p.get("in_place"):
        inputs = {name: addend.empty(elements, "float32", name, op=addend.Sum) for name in names}
    else:
        inputs = {name: np.empty(elements, np.float32) for name in names}
    before = addend.statistics()

    def round(number):
        for values in inputs.values():
            values[:] = number + rank
        handles = [addend.push_pull_async(inputs[name], name, op=addend.Sum) for name in names]
        expected = size * number + size * (size - 1) / 2
        return all(bool((addend.synchronize(handle, copy=not p.get("in_place")) == expected).all()) for handle in handles)

    right = True
    if p.get("warm_up"):
        right = round(100)
        gate("warm")
    for number in range(p["rounds"]):
        right = round(number) and right
    after = addend.statistics()
    if p.get("hold", False):
        gate("done")
    addend.shutdown()
    finish({"right": right, **{key: after[key] - before[key] for key in ("copied_in_bytes", "copied_out_bytes")}})


main()
