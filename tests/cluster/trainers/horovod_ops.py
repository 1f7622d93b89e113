"""Horovod's functions on the real cluster: sizes that change from call to call, and ranks that disagree."""
import torch

import addend.torch as hvd
from common import RANK, finish, outcome, parameters


def sizes_change(size):
    for turn in range(10):
        rows = [(i + turn) % 3 for i in range(size)]
        expected = torch.cat([torch.full((n, 2), 10.0 * turn + i) for i, n in enumerate(rows)])
        mine = torch.full((rows[RANK], 2), 10.0 * turn + RANK)
        assert torch.equal(hvd.allgather(mine, name="named"), expected)
        assert torch.equal(hvd.allgather(mine), expected)
        assert hvd.allgather_object(["x" * 500 * n for n in rows][RANK]) == ["x" * 500 * n for n in rows]
        assert hvd.broadcast_object(list(range(100 * turn)), root_rank=turn % size) == list(range(100 * turn))
        hvd.broadcast_parameters({"weight": mine[:0] if turn % 2 else torch.zeros(turn)}, root_rank=1)
        assert hvd.broadcast(torch.tensor([RANK == turn % size]), turn % size)


def bits_are_kept(size):
    """Broadcasts a NaN too, whose bits a sum would not keep."""
    nan = torch.tensor([0x7FC12345, -0x3EDCBB], dtype=torch.int32) + RANK
    result = hvd.broadcast(nan.view(torch.float32), size - 1).view(torch.int32)
    assert torch.equal(result, nan - RANK + size - 1)


def optimizer_of_other_shapes():
    model = torch.nn.Linear(3, 1 + RANK)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def disagree(what):
    other = RANK == 1
    if what == "dtype":
        hvd.allreduce(torch.zeros(2, dtype=torch.float64 if other else torch.float32), name=what)
    elif what == "op":
        hvd.allreduce(torch.zeros(2), name=what, op=hvd.Max if other else hvd.Sum)
    elif what == "broadcast":
        hvd.broadcast(torch.zeros(2, dtype=torch.bool if other else torch.float32), 0, name=what)
    elif what == "allgather":
        hvd.allgather(torch.zeros(2, 2 + other), name=what)
    else:
        optimizer_of_other_shapes()


def main():
    hvd.init()
    bits_are_kept(hvd.size())
    result = {}
    for what in parameters()["disagree"]:
        result[what] = outcome(lambda what=what: disagree(what))
        if what == "allgather":
            sizes_change(hvd.size())  # the job still works
    hvd.shutdown()
    finish(result)


main()
