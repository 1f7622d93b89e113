"""addend.torch on tensors that are not contiguous, of every type."""
import torch

import addend.torch
from common import finish


def main():
    addend.torch.init()
    rank, size = addend.torch.rank(), addend.torch.size()
    total = size * (size - 1) // 2
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        whole = (torch.arange(24).reshape(4, 6) + rank).to(dtype)
        for name, view in (("transposed", whole.t()), ("strided", whole[::2, 1::3]), ("whole", whole)):
            result = addend.torch.push_pull(view, average=False, name=f"{name} {dtype}")
            expected = ((view.double() - rank) * size + total).to(dtype)
            assert result.dtype == dtype and result.shape == view.shape and torch.equal(result, expected), (name, dtype)
    parameters = {"weight": torch.full((3, 2), float(rank)), "bias": torch.full((2,), float(rank))}
    addend.torch.broadcast_parameters(parameters, root_rank=1)
    assert all((value == 1).all() for value in parameters.values())
    addend.torch.shutdown()
    finish({"checks": "all right"})


main()
