"""Node 0 pushes each tensor long after the others."""
import os
import time

import numpy as np

import addend
from common import finish, gate, parameters


def main():
    p = parameters()
    addend.init()
    values = np.full(p["elements"], 1, np.dtype(p["dtype"]))
    right = True
    for _ in range(p["rounds"]):
        if os.environ["GROUP_RANK"] == "0":
            time.sleep(p["late_s"])
        right = right and bool((addend.push_pull(values, "tensor", op=addend.Sum) == addend.size()).all())
    gate("done")
    addend.shutdown()
    finish({"right": right})


main()
