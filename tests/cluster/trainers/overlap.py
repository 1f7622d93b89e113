"""Computes and communicates as DDP does: it pushes a bucket after each slice of the backward pass.

Reports the seconds of computing alone, communicating alone, and both together.
"""
import time

import numpy as np

import addend
from common import finish, parameters


def compute(seconds):
    """Keeps a core busy, as a backward pass does."""
    end = time.monotonic() + seconds
    values = np.ones(10_000, np.float32)
    while time.monotonic() < end:
        values = values * np.float32(1.0)


def main():
    p = parameters()
    addend.init()
    buckets = p["buckets"]
    gradients = [np.ones(p["bytes"] // buckets // 4, np.float32) for _ in range(buckets)]

    def step(seconds_of_compute):
        addend.barrier()
        start = time.monotonic()
        handles = []
        for i, gradient in enumerate(gradients):
            compute(seconds_of_compute / buckets)
            # Buckets of the layers nearest to the input come last in the backward pass and are needed first.
            handles.append(addend.push_pull_async(gradient, f"bucket{i}", op=addend.Average, priority=i))
        for handle in handles:
            addend.synchronize(handle)
        return time.monotonic() - start

    step(0)  # declares
    alone = min(step(0) for _ in range(2))
    together = min(step(p["compute_s"]) for _ in range(2))
    addend.shutdown()
    finish({"communication_s": alone, "together_s": together})


main()
