"""Push-pulls a tensor several times, each after a pause that stands for computation; a rank may take longer."""
import os
import time

import numpy as np

from common import RANK, finish, gate, parameters

p = parameters()
if RANK == p.get("slow_copies_of_rank"):
    os.environ["ADDEND_STAGING_BANDWIDTH"] = str(p["copies_bytes_per_s"])

import addend  # noqa: E402


def main():
    addend.init()
    tensor = np.arange(p["elements"], dtype=np.float32) * (RANK + 1)
    for _ in range(p["steps"]):
        time.sleep(p.get("compute_s", 0) + (p["late_s"] if RANK == p.get("late_rank") else 0))
        result = addend.push_pull(tensor, "gradients", op=addend.Sum)
    if "gate" in p:
        gate(p["gate"])
    addend.shutdown()
    finish({"last": float(result[-1])})


main()
