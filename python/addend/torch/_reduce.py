"""allreduce and its variants, under Horovod's and BytePS's names."""

from __future__ import annotations

from typing import Any, Iterable, Union

import torch
from torch import Tensor

from .._core import Average, Op, Sum
from . import _exact, _sets
from ._exact import Combination
from ._handle import Handle, T
from ._rounds import start_reduce
from ._sets import ProcessSet
from ._tensors import check_op, wire_dtype
from .compression import Compression
from .compression.cast import Compressor, wire_format_of

AnyOp = Union[Op, Combination]
"""An op of the engine, or Product and Adasum, which each rank computes of all ranks' tensors."""


def chosen_op(average: bool | None, op: AnyOp | None) -> AnyOp:
    """Converts Horovod's two ways to name the combination of contributions to a single op."""
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both; average is the older way")
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, Combination):
        check_op(op)
    return op


def _kind(tensors, op, wire):
    return "allreduce/%r%s/%s" % (op, "" if wire is None else "/" + wire, ";".join("%s%s" % (t.dtype, list(t.shape)) for t in tensors))


class _Request:
    """The arguments of an operation beside its tensors."""

    def __init__(
        self, average, name, op, prescale_factor, postscale_factor, process_set, priority=0, wire=None
    ):
        self.name = name
        self.op = chosen_op(average, op)
        self.factors = (prescale_factor, postscale_factor)
        self.process_set = _sets.chosen(process_set)
        self.priority = priority
        self.wire = wire

    def of_gradients(self):
        """The same for the gradients of its results: the gradient of a sum over ranks is the sum of the
        ranks' gradients.
        """
        name = None if self.name is None else self.name + "/gradient"
        return _Request(None, name, self.op, *self.factors, self.process_set, wire=self.wire)

    def start(self, tensors: list[Tensor], targets: list[Tensor]) -> Handle[list[Tensor]]:
        """Starts the operation on all of `tensors`; its result is the list of targets."""
        return self.process_set.start(
            self.name, _kind(tensors, self.op, self.wire), lambda chosen: self._begin(chosen, tensors, targets)
        )

    def _begin(self, chosen, tensors, targets):
        names = [chosen] if len(tensors) == 1 else ["%s.%d" % (chosen, i) for i in range(len(tensors))]
        started = [self._single(*each) for each in zip(tensors, targets, names)]

        def finish():
            for one in started:
                one.wait()
            return targets

        return Handle(started, finish)

    def _single(self, source, target, name):
        if isinstance(self.op, Combination):
            return _exact.start(self.op, source, target, name, self.priority, *self.factors, self.process_set)
        participants = self.process_set.participants
        return start_reduce(
            source, target, name, self.op, self.priority, *self.factors, participants, self.wire
        )


def _single(request, tensor, target):
    group = request.start([tensor], [target])
    return Handle([group], lambda: group.wait()[0])


def _tensors_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    tensors = list(tensors)
    for tensor in tensors:
        wire_dtype(tensor)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    return tensors


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


class _Differentiable(torch.autograd.Function):
    """An operation on tensors, and on the gradients of its results."""

    @staticmethod
    def forward(context, request, *tensors):
        context.request = request
        return tuple(request.start(list(tensors), [_like(one) for one in tensors]).wait())

    @staticmethod
    def backward(context, *gradients):
        sums = context.request.of_gradients().start(list(gradients), [_like(one) for one in gradients])
        return (None, *sums.wait())


def _reduced(request: _Request, tensors: list[Tensor]) -> list[Tensor]:
    wants_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    if wants_gradient and request.op in (Sum, Average):
        return list(_Differentiable.apply(request, *tensors))
    return request.start(tensors, [_like(one) for one in tensors]).wait()


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    priority: int = 0,
) -> Handle[Tensor]:
    """Starts the average of `tensor` over all ranks, or those of the process set (`op`: or sum, ...),
    in place; returns a handle.

    The tensor must not be used before synchronize(handle), which returns it. All ranks give tensors
    of the same shape and dtype under the same name, or without a name in the same order of calls.
    `op` Product and Adasum: each rank receives all ranks' tensors.
    """
    wire_dtype(tensor)
    request = _Request(average, name, op, prescale_factor, postscale_factor, process_set, priority)
    return _single(request, tensor, tensor)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    priority: int = 0,
) -> Handle[Tensor]:
    """As allreduce_async_, but the result is a new tensor."""
    wire_dtype(tensor)
    request = _Request(average, name, op, prescale_factor, postscale_factor, process_set, priority)
    return _single(request, tensor, _like(tensor))


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Tensor:
    """The average of `tensor` over all ranks (`op`: or sum, ...), as a new tensor.

    Differentiable for Sum and Average. `compression`: Compression.fp16, bf16 or int8 for the
    transfer.
    """
    wire_dtype(tensor)
    wire = wire_format_of(compression)
    request = _Request(average, name, op, prescale_factor, postscale_factor, process_set, wire=wire)
    compressed, context = compression.compress(tensor)
    return compression.decompress(_reduced(request, [compressed])[0], context)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Tensor:
    """As allreduce, in place; not differentiable."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_allreduce_async_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Handle[list[Tensor]]:
    """As allreduce_async_ for a list of tensors; synchronize(handle) returns the list."""
    tensors = _tensors_of(tensors)
    request = _Request(average, name, op, prescale_factor, postscale_factor, process_set)
    return request.start(tensors, tensors)


def grouped_allreduce_async(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Handle[list[Tensor]]:
    """As grouped_allreduce_async_, but the results are new tensors."""
    tensors = _tensors_of(tensors)
    request = _Request(average, name, op, prescale_factor, postscale_factor, process_set)
    return request.start(tensors, [_like(one) for one in tensors])


def grouped_allreduce(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> list[Tensor]:
    """As allreduce for a list of tensors; differentiable like it."""
    wire = wire_format_of(compression)
    request = _Request(average, name, op, prescale_factor, postscale_factor, process_set, wire=wire)
    pairs = [compression.compress(one) for one in _tensors_of(tensors)]
    results = _reduced(request, [one for one, _ in pairs])
    return [compression.decompress(r, context) for r, (_, context) in zip(results, pairs)]


def grouped_allreduce_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: AnyOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> list[Tensor]:
    """As allreduce_ for a list of tensors."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def poll(handle: Handle[Any]) -> bool:
    """True when the operation has ended, in success or failure: synchronize() then returns at once."""
    return handle.done()


def synchronize(handle: Handle[T], timeout: float | None = None) -> T:
    """Waits for a handle of any *_async function; returns its result, or raises its error."""
    return handle.wait(timeout)
