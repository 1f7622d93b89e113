"""AsyncOptimizer: every rank steps at its own speed, on parameters that the servers keep."""

import itertools

import torch

from .. import _core
from .. import barrier, node_rank, rank
from .._core import Accumulate
from ._optimizer import as_subclass, labels_of
from ._rounds import start_reduce
from ._tensors import declare_tensor

_instances = itertools.count()


class _Parameters:
    """The optimizer's parameters on their owners, where every change is added to the latest values."""

    def __init__(self, labels):
        prefix = "addend.async/%d/" % next(_instances)
        self._names = [(parameter, prefix + label) for parameter, label in labels.items()]
        self._context = None

    def seed_if_new(self):
        """In a new job the owners have nothing: rank 0's values become the first ones, for all ranks."""
        if self._context == _core.context():
            return
        self._context = _core.context()
        for parameter, name in self._names:  # else the first push would wait for other nodes' first
            declare_tensor(parameter, name, Accumulate)
        # The first value is the first contribution. Ranks of a node contribute together.
        if node_rank() == 0:
            self._exchange([p.detach().clone() if rank() == 0 else None for p, _ in self._names])
        barrier()
        if node_rank() != 0:
            self._exchange([None] * len(self._names))
        barrier()  # nobody has stepped yet: all begin with the same

    def values(self):
        return [parameter.detach().clone() for parameter, _ in self._names]

    def add_changes_since(self, former):
        """Sends what has been added to `former`, and takes the latest values."""
        changes = []
        for (parameter, _), old in zip(self._names, former):
            # A parameter without gradient was left alone, but others may have changed it.
            changes.append(None if parameter.grad is None else parameter.detach() - old)
        self._exchange(changes)

    def _exchange(self, changes):
        # What the next forward pass needs first goes first.
        handles = [
            start_reduce(change, parameter, name, Accumulate, priority=-place)
            for place, ((parameter, name), change) in enumerate(zip(self._names, changes))
        ]
        for handle in handles:
            handle.wait()


class Asynchronous:
    """What AsyncOptimizer() adds to the class of the optimizer that it is given."""

    def step(self, closure=None, **options):
        """The optimizer's own step, whose changes are added to the latest parameters; then takes these.

        Waits for the owners of the parameters, never for another node.
        """
        parameters = self._addend_parameters
        parameters.seed_if_new()
        former = parameters.values()
        arguments = () if closure is None else (closure,)
        result = super().step(*arguments, **options)
        parameters.add_changes_since(former)
        return result

    step.hooked = True  # as Distributed.step


def AsyncOptimizer(optimizer, named_parameters=None):  # pylint: disable=invalid-name
    """An optimizer of the class of `optimizer`, which it replaces, for asynchronous training.

    Every rank trains at its own speed: step() makes the optimizer's step on this rank's own gradients,
    sends what it has changed, and takes the latest parameters, which have the changes of all ranks so
    far. Given the same order of steps the parameters have the bits of a plain asynchronous parameter
    server (BytePS, OSDI '20, Theorem 2); the order is a matter of time, so training is not
    reproducible. Ranks of one node step together, and their changes are added up before they are sent.

    All ranks make it in the same order, and it gives all of them rank 0's parameters. From then on the
    parameters change by step() alone: load a checkpoint before. The optimizer's state (momenta) and
    buffers of the model (BatchNorm's averages) are each rank's own.
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
