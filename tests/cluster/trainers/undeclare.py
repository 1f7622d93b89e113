"""The same names again and again, with another shape and type each time."""
import numpy as np

import addend
from common import finish


def main():
    addend.init()
    size = addend.size()
    for round in range(20):
        for i in range(3):
            values = np.full(1 + round * 7 + i, round, (np.float32, np.int64, np.float16)[round % 3])
            result = addend.push_pull(values, f"tensor{i}", op=addend.Sum)
            assert result.shape == values.shape and (result == round * size).all()
        for i in range(3):
            addend.undeclare(f"tensor{i}")
    addend.shutdown()
    finish({"checks": "all right"})


main()
