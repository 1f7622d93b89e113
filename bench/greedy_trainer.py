"""Declares tensors of `bytes` that are too large for the servers, in a loop, until it is killed."""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster" / "trainers"))
import addend  # noqa: E402
from common import gate, parameters  # noqa: E402


def main():
    addend.init()
    values = np.zeros(parameters()["bytes"] // 4, np.float32)
    gate("running")
    refused = 0
    while True:
        try:
            addend.push_pull(values, f"too large {refused}")
            raise AssertionError("there was room for it")
        except addend.Error:
            refused += 1


main()
