"""AsyncOptimizer: every rank steps at its own speed, on parameters that the owners keep."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from .. import _core
from .. import barrier, node_rank, rank
from .._core import Accumulate
from ._optimizers import as_subclass, labels_of
from ._rounds import start_reduce
from ._tensors import declare_tensor

_instances = itertools.count()
# At run time the class is made for each optimizer: see as_subclass.
if TYPE_CHECKING:
    _Base = Optimizer
else:
    _Base = object


class _Parameters:
    """The optimizer's parameters on their owners, which add every change to the latest values."""

    def __init__(self, labels):
        prefix = "addend.async/%d/" % next(_instances)
        self._names = [(parameter, prefix + label) for parameter, label in labels.items()]
        self._context = None

    def seed_if_new(self):
        """In a new job the owners have no values: gives all ranks rank 0's values as the initial values."""
        if self._context == _core.context():
            return
        self._context = _core.context()
        # Otherwise the first push would wait for the other nodes' first push.
        for parameter, name in self._names:
            declare_tensor(parameter, name, Accumulate)
        # The first contribution is the initial value. Ranks of a node contribute together.
        if node_rank() == 0:
            self._exchange([p.detach().clone() if rank() == 0 else None for p, _ in self._names])
        barrier()
        if node_rank() != 0:
            self._exchange([None] * len(self._names))
        barrier()  # no rank has stepped yet: all start with the same values

    def values(self):
        return [parameter.detach().clone() for parameter, _ in self._names]

    def add_changes_since(self, former):
        """Sends the changes since `former`, and takes the latest values."""
        changes = []
        for (parameter, _), old in zip(self._names, former):
            # A parameter without a gradient is unchanged here, but other ranks may have changed it.
            changes.append(None if parameter.grad is None else parameter.detach() - old)
        self._exchange(changes)

    def _exchange(self, changes):
        # Parameters that the next forward pass needs first go first.
        handles = [
            start_reduce(change, parameter, name, Accumulate, priority=-place)
            for place, ((parameter, name), change) in enumerate(zip(self._names, changes))
        ]
        for handle in handles:
            handle.wait()


class Asynchronous(_Base):
    """The methods that AsyncOptimizer() adds to the class of the given optimizer."""

    addend_mixin = True
    _addend_parameters: _Parameters

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Makes the optimizer's own step, adds its changes to the latest parameters, and takes the
        sum.

        Waits for the owners of the parameters, never for another node.
        """
        parameters = self._addend_parameters
        parameters.seed_if_new()
        former = parameters.values()
        arguments = () if closure is None else (closure,)
        result = super().step(*arguments, **options)
        parameters.add_changes_since(former)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # as Distributed.step


def AsyncOptimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
) -> Asynchronous:  # pylint: disable=invalid-name
    """Returns an optimizer of the class of `optimizer`, which it replaces, for asynchronous
    training.

    Every rank trains at its own speed: step() makes the optimizer's step on this rank's own
    gradients, sends the changes, and takes the latest parameters, which include the changes of all
    ranks so far. Given the same order of steps, the parameters have the bits of a plain
    asynchronous parameter server (BytePS, OSDI '20, Theorem 2); the order depends on timing, so
    training is not reproducible. Ranks of one node step together, and their changes are added up
    before they are sent.

    All ranks call it in the same order, and it gives all of them rank 0's parameters. From then on
    only step() may change the parameters: load a checkpoint before. The optimizer's state (momenta)
    and the model's buffers (BatchNorm's averages) are each rank's own.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError("AsyncOptimizer takes a torch.optim.Optimizer, not %r" % (optimizer,))
    if hasattr(optimizer, "_addend") or hasattr(optimizer, "_addend_parameters"):
        raise ValueError("this optimizer is one of addend.torch's already; give AsyncOptimizer the plain one")
    labels = labels_of(optimizer, named_parameters)
    for parameter in labels:
        if not parameter.is_floating_point():
            raise TypeError("AsyncOptimizer takes floating parameters, but one is %s" % parameter.dtype)
    made = as_subclass(optimizer, Asynchronous)
    made._addend_parameters = _Parameters(labels)
    made._addend_parameters.seed_if_new()
    return made
