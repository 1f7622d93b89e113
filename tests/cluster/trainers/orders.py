"""Every other node pushes its tensors in the opposite order, with a pause after each."""
import os
import time

import numpy as np

import addend
from common import finish, gate, parameters


def main():
    p = parameters()
    addend.init()
    order = list(range(p["tensors"]))
    if int(os.environ["GROUP_RANK"]) % 2:
        order.reverse()
    rank, size = addend.rank(), addend.size()
    right = True
    for number in range(p["rounds"]):
        handles = {}
        for i in order:
            values = np.full(p["elements"], number * 100 + i + rank, np.float32)
            handles[i] = addend.push_pull_async(values, f"tensor{i}", op=addend.Sum)
            time.sleep(p["pause_s"])
        for i, handle in handles.items():
            expected = size * (number * 100 + i) + size * (size - 1) / 2
            right = right and bool((addend.synchronize(handle) == expected).all())
    if p.get("hold"):
        gate("done")
    addend.shutdown()
    finish({"right": right})


main()
