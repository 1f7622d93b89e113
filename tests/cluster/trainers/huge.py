"""A very large tensor, checked piece by piece so that no copy is needed."""
import numpy as np

import addend
from common import finish, parameters


def main():
    p = parameters()
    addend.init()
    rank, size = addend.rank(), addend.size()
    elements = p["bytes"] // 4
    values = addend.empty(elements, "float32", "huge", op=addend.Sum) if p.get("in_place") else np.empty(elements, np.float32)
    piece = 50_000_000
    for start in range(0, elements, piece):
        values[start:start + piece] = start // piece + rank
    result = addend.synchronize(addend.push_pull_async(values, "huge", op=addend.Sum), copy=False)
    right = result.shape == (elements,)
    for start in range(0, elements, piece):
        expected = (start // piece) * size + size * (size - 1) / 2
        right = right and bool((result[start:start + piece] == expected).all())
    del result
    addend.shutdown()
    finish({"right": right})


main()
