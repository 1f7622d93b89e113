"""Tensors at the limits of the supported shapes and names."""
import numpy as np

import addend
from common import finish


def main():
    addend.init()
    rank, size = addend.rank(), addend.size()
    total = size * (size - 1) // 2

    for shape in ((0,), (3, 0, 2)):
        result = addend.push_pull(np.ones(shape, np.float32), f"nothing {shape}", op=addend.Sum)
        assert result.shape == shape and result.dtype == np.float32

    result = addend.push_pull(np.array(rank, np.float64), "scalar", op=addend.Sum)
    assert result.shape == () and result == total

    grid = np.arange(24, dtype=np.float32).reshape(4, 6) + rank
    for name, view in (("transposed", grid.T), ("strided", grid[::2, 1::3]), ("reversed", grid[::-1])):
        result = addend.push_pull(view, name, op=addend.Sum)
        assert result.shape == view.shape and (result == (view - rank) * size + total).all(), name

    names = ["ä", "梯度/层.0", "\U0001F600", "a b\tc\n'\"\\%s{}", "x" * 4000, "-", "\u202e", "a\u0308"]
    assert len({name.encode() for name in names}) == len(names)  # the two forms of ä are two names
    for number, name in enumerate(names):
        result = addend.push_pull(np.full(2, rank + number, np.int64), name, op=addend.Sum)
        assert (result == total + size * number).all(), name

    root = size - 1
    result = addend.broadcast(np.full(5, rank, np.float32), root_rank=root, name="broadcast")
    assert (result == root).all()
    addend.barrier()
    assert (addend.push_pull(np.float32([rank]), "broadcast", op=addend.Max) == size - 1).all()

    first = addend.push_pull_async(np.float32([1]), "twice", op=addend.Sum)
    second = addend.push_pull_async(np.float32([2]), "twice", op=addend.Sum)
    assert addend.synchronize(second) == 2 * size and addend.synchronize(first) == size
    addend.shutdown()
    finish({"checks": "all right"})


main()
