"""Pushes several tensors per step, as a training does, until all steps are done or the job fails."""
import numpy as np

import addend
from common import finish, gate, outcome, parameters


def main():
    p = parameters()
    done = 0

    def train():
        nonlocal done
        addend.init()
        for step in range(p["steps"]):
            handles = [addend.push_pull_async(np.full(5000, step, np.float32), f"layer{i}", op=addend.Average) for i in range(4)]
            for handle in handles:
                result = addend.synchronize(handle)
                assert (result == step).all()
            done = step + 1
            if done == 3 and "gate" in p:
                gate(p["gate"])
        addend.shutdown()

    finish({**outcome(train), "steps": done})


main()
