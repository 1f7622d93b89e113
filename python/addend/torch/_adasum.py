"""DistributedOptimizer(op=Adasum): each rank makes the optimizer's step on its own gradients, and the
changes of the weights are combined by Adasum.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import _exact
from ._exact import Adasum
from ._optimizers import OwnGradients, as_subclass
from ._sets import ProcessSet, global_process_set
from .compression.cast import Compressor

_instances = itertools.count()


class _Changes:
    """The combination of the changes that each rank has made to its weights."""

    def __init__(self, labels: dict[Tensor, str], compression: Compressor, process_set: ProcessSet) -> None:
        if process_set is global_process_set:
            prefix = "addend.adasum/%d/" % next(_instances)
        else:
            prefix = process_set.next_optimizer()
        self._names = [(parameter, prefix + label) for parameter, label in labels.items()]
        self._compression = compression
        self._set = process_set

    def values(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter, _ in self._names]

    def combine_since(self, former: list[Tensor]) -> None:
        """Replaces this rank's changes since `former` by those of all ranks."""
        started = []
        with torch.no_grad():
            for place, ((parameter, name), old) in enumerate(zip(self._names, former)):
                sent, context = self._compression.compress(parameter.detach() - old)
                room = torch.empty_like(sent)
                handle = _exact.start(Adasum, sent, room, name, -place, 1.0, 1.0, self._set)
                started.append((parameter, old, handle, context))
            for parameter, old, handle, context in started:
                parameter.copy_(old + self._compression.decompress(handle.wait(), context))


class Adapting(OwnGradients):
    """The methods that DistributedOptimizer(op=Adasum) adds to the class of the given optimizer."""

    _addend_changes: _Changes

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Makes the optimizer's step on this rank's gradients, and combines the ranks' changes."""
        former = self._addend_changes.values()
        arguments = () if closure is None else (closure,)
        result = super().step(*arguments, **options)
        self._addend_changes.combine_since(former)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # as Distributed.step


def adasum_optimizer(
    optimizer: Optimizer,
    labels: dict[Tensor, str],
    compression: Compressor,
    process_set: ProcessSet,
) -> Adapting:
    """The optimizer of DistributedOptimizer(op=Adasum). `labels`: the parameters' names."""
    for parameter in labels:
        Adasum.check(parameter, len(process_set.ranks))
    made = as_subclass(optimizer, Adapting)
    made._addend_changes = _Changes(labels, compression, process_set)
    return made
