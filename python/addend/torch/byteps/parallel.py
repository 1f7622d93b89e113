"""DistributedDataParallel of BytePS: a module whose gradients are averages after each backward pass."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import Module

from ..._core import Average
from .. import _broadcast
from .._exchange import Exchange, Singles
from ..compression import Compression
from ..compression.cast import Compressor

_instances = itertools.count()


class DistributedDataParallel(Module):
    """Averages the gradients of `module` over all ranks, in each backward pass.

    Gradients travel as soon as they are made, and the backward pass ends when all are averages:
    parameters without a gradient take part with zeros. All ranks begin with rank 0's parameters and
    buffers. `device_ids` is accepted as by torch.nn.parallel.DistributedDataParallel: the module must
    be on its device already. `broadcast_buffers`: buffers are rank 0's in every forward pass.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        broadcast_buffers: bool = True,
        compression: Compressor = Compression.none,
    ) -> None:
        super().__init__()
        if device_ids is not None and len(device_ids) != 1:
            raise ValueError("DistributedDataParallel takes one device, not %d" % len(device_ids))
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self._number = next(_instances)
        self._averages = True
        self._queued = False
        self._exchange = Exchange(lambda prefix: Singles(Average, compression, 1.0), 1, False)
        for name, parameter in module.named_parameters():
            self._exchange.add(parameter, name)
            if parameter.requires_grad:
                parameter.register_hook(self._begin)
        _broadcast.broadcast_parameters(module.state_dict(), 0, self._prefix("state"))

    def _prefix(self, part: str) -> str:
        return "ddp%d.%s/" % (self._number, part)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        buffers = list(self.module.named_buffers())
        if self.broadcast_buffers and self._averages and self.module.training and buffers:
            _broadcast.broadcast_parameters(buffers, 0, self._prefix("buffers"))
        return self.module(*inputs, **options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in whose backward passes gradients are added up, and not averaged; the next
        backward pass outside averages their sum.
        """
        former, self._averages = self._averages, False
        self._exchange.paused = True
        try:
            yield
        finally:
            self._averages = former
            self._exchange.paused = not former

    def _begin(self, gradient: Tensor) -> Tensor:
        """The first gradient of a backward pass: its end waits for the averages."""
        if self._averages and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return gradient

    def _end(self) -> None:
        self._queued = False
        self.synchronize()

    def synchronize(self) -> None:
        """Waits until all gradients are averages; every backward pass ends with it."""
        self._exchange.synchronize()
