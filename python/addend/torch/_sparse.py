"""Sums of sparse tensors: only elements that are there travel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Average, Op, Sum
from . import _sets
from ._gather import allgather_async
from ._handle import Handle
from ._sets import ProcessSet


class SparseHandle(Handle[Tensor]):
    """A handle that may be called, as Horovod's may, instead of being synchronized."""

    def __call__(self) -> Tensor:
        return self.wait()


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet | None = None,
) -> SparseHandle:
    """Starts the average (`op`: or sum) of sparse COO tensors over all ranks; returns a handle.

    synchronize(handle), or handle(), returns a sparse tensor. Every rank receives all ranks' elements;
    those of the same place are added in the order of the ranks when the tensor is coalesced.
    """
    if not torch.is_tensor(tensor) or tensor.layout != torch.sparse_coo:
        raise TypeError("sparse_allreduce_async takes a sparse COO tensor; allreduce_async takes others")
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async takes op=Average or Sum, not %r" % (op,))
    chosen = _sets.chosen(process_set)
    names = [None if name is None else "addend.sparse/%s.%s" % (name, part) for part in ("indices", "values")]
    tensor = tensor.detach()
    indices = allgather_async(tensor._indices().t().contiguous(), names[0], chosen)
    values = allgather_async(tensor._values(), names[1], chosen)

    def finish() -> Any:
        summed = values.wait()
        if op == Average:
            summed = summed / len(chosen.ranks)
        return torch.sparse_coo_tensor(indices.wait().t(), summed, tensor.shape)

    return SparseHandle([indices, values], finish)
