"""Pushes a tensor round after round until the test says stop; at the gate "nan" the last rank's next contribution has a NaN."""
import numpy as np

import addend
from common import file, finish, gate, outcome, parameters, wants


def main():
    rounds = 0

    def run():
        nonlocal rounds
        addend.init()
        values = np.ones(parameters()["bytes"] // 4, np.float32)
        last, pushed_nan, stop = addend.rank() == addend.size() - 1, False, False
        while not stop:
            nan = last and wants("nan") and not pushed_nan
            values[0] = np.nan if nan else 1
            pushed_nan = pushed_nan or nan
            handle = addend.push_pull_async(values, "gradients", op=addend.Sum)
            stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]  # all ranks stop in the same round
            addend.synchronize(handle)
            rounds += 1
            file("rounds").write_text(str(rounds))
            if rounds == 3:
                gate("running")
        addend.shutdown()

    result = outcome(run)
    finish({**result, "rounds": rounds})


main()
