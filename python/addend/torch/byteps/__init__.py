"""Addend for PyTorch, under BytePS's names and with BytePS's signatures.

    import addend.torch.byteps as bps               # was: import byteps.torch as bps

The package addend-byteps also provides `import byteps.torch`. BYTEPS_ENABLE_ASYNC=1 makes training
asynchronous, as with BytePS: see addend.torch.AsyncOptimizer.
"""

from __future__ import annotations

import os
from typing import Any, Iterable

from torch import Tensor
from torch.optim import Optimizer

from ... import init, local_rank, local_size, rank, shutdown, size
from .. import _broadcast, _optimizer
from .._async import AsyncOptimizer
from .._push_pull import declare, push_pull, push_pull_async
from .._push_pull import push_pull_async_inplace, push_pull_inplace
from .._reduce import poll, synchronize
from ..compression import Compression
from ..compression.cast import Compressor
from . import cross_barrier, ops, parallel
from .cross_barrier import CrossBarrier
from .ops import (
    byteps_torch_set_num_grads,
    get_pushpull_speed,
    push_pull_group_sync_inplace,
    resume,
    suspend,
)
from .parallel import DistributedDataParallel

byteps_push_pull = push_pull_async_inplace

__all__ = [
    "Compression",
    "CrossBarrier",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "cross_barrier",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "ops",
    "parallel",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]


def DistributedOptimizer(  # pylint: disable=invalid-name
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
) -> Any:
    """As addend.torch.DistributedOptimizer; with BYTEPS_ENABLE_ASYNC=1 as addend.torch.AsyncOptimizer."""
    if os.environ.get("BYTEPS_ENABLE_ASYNC", "0") not in ("", "0"):
        return AsyncOptimizer(optimizer, named_parameters)
    return _optimizer.DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step)


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
    """As addend.torch.broadcast_parameters."""
    _broadcast.broadcast_parameters(params, root_rank, prefix)


def broadcast_optimizer_state(optimizer: Optimizer, root_rank: int, prefix: str = "Parameter.") -> None:
    """As addend.torch.broadcast_optimizer_state; `prefix` is ignored."""
    del prefix
    _broadcast.broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """As addend.torch.broadcast_object."""
    return _broadcast.broadcast_object(obj, root_rank, name)
