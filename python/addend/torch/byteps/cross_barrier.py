"""CrossBarrier with BytePS's signature."""

from __future__ import annotations

from typing import Any, Iterable, cast

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from .. import _cross_barrier
from .._optimizer import Distributed, DistributedOptimizer
from ..compression import Compression
from ..compression.cast import Compressor


def CrossBarrier(  # pylint: disable=invalid-name
    model: Module,
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Any:
    """As addend.torch.CrossBarrier, of a plain optimizer, or of a DistributedOptimizer."""
    if not isinstance(optimizer, Distributed):
        optimizer = DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step)
    return _cross_barrier.CrossBarrier(model, cast(Distributed, optimizer), num_steps)
