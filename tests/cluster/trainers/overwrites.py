"""Pushes an array in the agent's memory round after round, and writes the array as soon as it may: after each result, and after the
error of a lost agent. Reports of every result the different numbers in it.
"""
import numpy as np

import addend
from common import RANK, file, finish, gate, outcome, parameters, wants

p = parameters()


def main():
    report = {"results": []}

    def run():
        addend.init()
        values = addend.empty(p["elements"], np.float32, "values", op=addend.Sum)
        stop = False
        try:
            while not stop:
                values[:] = 1 << RANK
                handle = addend.push_pull_async(values, "values", op=addend.Sum)
                file("pushed").write_text(str(len(report["results"]) + 1))
                result = addend.synchronize(handle)
                report["results"].append(np.unique(result)[:10].tolist())
                values[:] = -1000
                stop = addend.push_pull(np.array([wants("stop")], np.int32), "stop", op=addend.Max)[0]
                file("rounds").write_text(str(len(report["results"])))
                if len(report["results"]) == 3:
                    gate("running")
        finally:
            values[:] = -1000
            file("overwritten").touch()

    finish({**outcome(run), **report})


main()
