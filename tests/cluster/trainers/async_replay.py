"""Asynchronous updates in an order that the test prescribes: a rank pushes when it is its turn, and keeps the answers' digests."""
import hashlib

import addend
from common import RANK, finish, outcome, parameters, shared, wait_for
from tests.support import reference


def main():
    p = parameters()
    digests = {}

    def run():
        addend.init()
        for name, (dtype, size) in p["tensors"].items():
            addend.declare(name, size, dtype, op=addend.Accumulate)
        for turn, rank in enumerate(p["order"]):
            if rank != RANK:
                continue
            wait_for(shared(f"turn.{turn}"))
            handles = [
                addend.push_pull_async(reference.random_values(dtype, size, [turn, i]), name, op=addend.Accumulate,
                                       dtype=dtype)
                for i, (name, (dtype, size)) in enumerate(p["tensors"].items())]
            digests[turn] = [hashlib.sha256(addend.synchronize(handle).tobytes()).hexdigest() for handle in handles]
            shared(f"turn.{turn + 1}").touch()
        wait_for(shared(f"turn.{len(p['order'])}"))
        addend.shutdown()

    finish({**outcome(run), "digests": digests})


main()
