"""Shards of equal local ranks, joined over the nodes: exact values, every type."""
import torch

import addend.torch as at
from common import finish


def contribution(rank, dtype, shape=(5, 3)):
    values = torch.arange(15).reshape(shape) * (rank + 1) - 7 * rank
    return values.to(dtype)


def check_types():
    mine = range(at.local_rank(), at.size(), at.local_size())
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        parts = torch.stack([contribution(rank, dtype).double() for rank in mine])
        mean = contribution(at.rank(), dtype)
        assert at.allreduce_replicas_(mean, f"mean {dtype}") is mean
        assert torch.equal(mean, parts.mean(0).to(dtype)), dtype
        total = at.allreduce_replicas_(contribution(at.rank(), dtype), f"sum {dtype}", at.Sum)
        assert torch.equal(total, parts.sum(0).to(dtype)), dtype
        least = at.allreduce_replicas_(contribution(at.rank(), dtype), f"least {dtype}", at.Min)
        assert torch.equal(least, parts.min(0)[0].to(dtype)), dtype


def check_rounding():
    """The exact mean, rounded once, of values whose sum their own type could not hold."""
    mine = range(at.local_rank(), at.size(), at.local_size())
    values = {rank: 60000 + 32 * rank for rank in range(at.size())}
    half = at.allreduce_replicas_(torch.full((9,), float(values[at.rank()]), dtype=torch.float16), "large")
    mean = sum(torch.tensor(values[rank], dtype=torch.float16).double() for rank in mine) / len(mine)
    assert torch.equal(half, torch.full((9,), mean).to(torch.float16))


def check_layouts():
    mine = range(at.local_rank(), at.size(), at.local_size())
    whole = torch.zeros(6, 4)
    view = whole[::2, 1:3]
    view += at.rank()
    handles = [at.allreduce_replicas_async_(view, "strided", at.Sum, priority=3)]
    number = torch.tensor([at.rank()], dtype=torch.int16)
    handles.append(at.allreduce_replicas_async_(number, "short", at.Sum))
    strided, short = [at.synchronize(handle) for handle in handles]
    assert strided is view and (whole[::2, 1:3] == sum(mine)).all() and (whole[1::2] == 0).all()
    assert short.dtype == torch.int16 and short.item() == sum(mine)
    before = at.statistics()
    at.allreduce_replicas_(torch.zeros(1000), "counted")
    after = at.statistics()
    # Shards of other local ranks are not copied.
    assert after["copied_in_bytes"] - before["copied_in_bytes"] == 4000
    assert after["copied_out_bytes"] - before["copied_out_bytes"] == 4000


def check_hooks():
    """Does by hand what FSDP does with hooks: equal modules, reduced pieces of changing sizes."""
    mine = range(at.local_rank(), at.size(), at.local_size())
    hooks = [at.replica_hook(torch.nn.Linear(2, 2)) for _ in range(2)] + [at.replica_hook("head")]
    for elements in (4, 6, 4):
        for factor, hook in enumerate(hooks):
            reduced = torch.full((elements,), float(factor * at.rank()))
            assert hook(reduced) is None
            assert torch.equal(reduced, torch.full((elements,), factor * sum(mine) / len(mine)))


def main():
    at.init()
    check_types()
    check_rounding()
    check_layouts()
    check_hooks()
    at.shutdown()
    finish({"checks": "all right"})


main()
