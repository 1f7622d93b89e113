"""Asynchronous training in an order that the test prescribes: a rank steps when it is its turn, and keeps its weights' digest."""
import addend.torch
from common import RANK, finish, outcome, parameters, shared, wait_for
from tests.support.async_training import Worker, with_parameter_server


def main():
    p = parameters()
    digests = {}

    def run():
        addend.torch.init()
        worker = Worker(RANK, addend.torch.AsyncOptimizer)
        for turn, rank in enumerate(p["order"]):
            if rank != RANK:
                continue
            wait_for(shared(f"turn.{turn}"))
            worker.step()
            digests[turn] = worker.digest()
            shared(f"turn.{turn + 1}").touch()
        wait_for(shared(f"turn.{len(p['order'])}"))
        addend.torch.shutdown()

    if p.get("reference"):  # in a process like the ranks', whose matrix products have the same bits
        return finish({"digests": with_parameter_server(p["order"])})
    finish({**outcome(run), "digests": digests})


main()
