"""Pushes a large amount, then a small urgent tensor, and reports when each result came."""
import time

import numpy as np

import addend
from common import finish, parameters


def main():
    p = parameters()
    addend.init()
    pieces = p["pieces"]
    bulk = [np.ones(p["bytes"] // pieces // 4, np.float32) for _ in range(pieces)]
    urgent = np.ones(1000, np.float32)

    def round():
        addend.barrier()
        start = time.monotonic()
        handles = [addend.push_pull_async(values, f"bulk{i}", op=addend.Sum, priority=0) for i, values in enumerate(bulk)]
        handle = addend.push_pull_async(urgent, "urgent", op=addend.Sum, priority=100)
        pushed = time.monotonic() - start
        addend.synchronize(handle)
        urgent_s = time.monotonic() - start
        done = sum(addend.poll(h) for h in handles)
        for h in handles:
            addend.synchronize(h)
        return {"pushed_s": pushed, "urgent_s": urgent_s, "bulk_s": time.monotonic() - start, "bulk_done": done}

    round()
    result = round()
    addend.shutdown()
    finish(result)


main()
