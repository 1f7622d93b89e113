"""allreduce and its variants, under Horovod's and BytePS's names."""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import Tensor

from .._core import Average, Op, Sum
from . import _names
from ._handle import Handle, T
from ._rounds import start_reduce
from ._tensors import check_op, wire_dtype
from ._unsupported import Unsupported, check_process_set
from .compression import Compression
from .compression.cast import Compressor


def chosen_op(average: bool | None, op: Op | Unsupported | None) -> Op:
    """Converts Horovod's two ways to name the combination of contributions to a single op."""
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both; average is the older way")
        return Average if average else Sum
    if op is None:
        return Average
    if isinstance(op, Unsupported):
        op.refuse()
    check_op(op)
    return op


def _kind(tensors, op):
    return "allreduce/%r/%s" % (op, ";".join("%s%s" % (t.dtype, list(t.shape)) for t in tensors))


def _start(
    tensors: list[Tensor],
    targets: list[Tensor],
    name: str | None,
    op: Op,
    priority: int,
    prescale_factor: float,
    postscale_factor: float,
) -> Handle[list[Tensor]]:
    """Starts an operation on all of `tensors`; its result is the list of targets."""

    def begin(chosen):
        names = [chosen] if len(tensors) == 1 else ["%s.%d" % (chosen, i) for i in range(len(tensors))]
        started = [
            start_reduce(source, target, one, op, priority, prescale_factor, postscale_factor)
            for source, target, one in zip(tensors, targets, names)
        ]

        def finish():
            for one in started:
                one.wait()
            return targets

        return Handle(started, finish)

    return _names.start(name, _kind(tensors, op), begin)


def _tensors_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    tensors = list(tensors)
    for tensor in tensors:
        wire_dtype(tensor)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    return tensors


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
    priority: int = 0,
) -> Handle[Tensor]:
    """Starts the average of `tensor` over all ranks (`op`: or sum, ...), in place; returns a
    handle.

    The tensor must not be used before synchronize(handle), which returns it. All ranks give tensors
    of the same shape and dtype under the same name, or without a name in the same order of calls.
    """
    check_process_set(process_set)
    wire_dtype(tensor)
    op = chosen_op(average, op)
    return _single([tensor], [tensor], name, op, priority, prescale_factor, postscale_factor)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
    priority: int = 0,
) -> Handle[Tensor]:
    """As allreduce_async_, but the result is a new tensor."""
    check_process_set(process_set)
    wire_dtype(tensor)
    op, target = chosen_op(average, op), _like(tensor)
    return _single([tensor], [target], name, op, priority, prescale_factor, postscale_factor)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _single(*arguments: Any) -> Handle[Tensor]:
    group = _start(*arguments)
    return Handle([group], lambda: group.wait()[0])


class _Differentiable(torch.autograd.Function):
    """The gradient of a sum over ranks is the sum of the ranks' gradients."""

    @staticmethod
    def forward(context, tensor, name, op, prescale_factor, postscale_factor):
        context.arguments = (name, op, prescale_factor, postscale_factor)
        return allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor).wait()

    @staticmethod
    def backward(context, gradient):
        name, *rest = context.arguments
        name = None if name is None else name + "/gradient"
        return (allreduce_async(gradient, None, name, *rest).wait(), None, None, None, None)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> Tensor:
    """The average of `tensor` over all ranks (`op`: or sum, ...), as a new tensor.

    Differentiable for Sum and Average. `compression`: Compression.fp16 or bf16 for the transfer.
    """
    check_process_set(process_set)
    wire_dtype(tensor)
    op = chosen_op(average, op)
    compressed, context = compression.compress(tensor)
    if compressed.requires_grad and torch.is_grad_enabled() and op in (Sum, Average):
        result = _Differentiable.apply(compressed, name, op, prescale_factor, postscale_factor)
    else:
        result = allreduce_async(compressed, None, name, op, prescale_factor, postscale_factor).wait()
    return compression.decompress(result, context)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> Tensor:
    """As allreduce, in place; not differentiable."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_allreduce_async_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> Handle[list[Tensor]]:
    """As allreduce_async_ for a list of tensors; synchronize(handle) returns the list."""
    check_process_set(process_set)
    tensors = _tensors_of(tensors)
    return _start(tensors, tensors, name, chosen_op(average, op), 0, prescale_factor, postscale_factor)


def grouped_allreduce_async(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> Handle[list[Tensor]]:
    """As grouped_allreduce_async_, but the results are new tensors."""
    check_process_set(process_set)
    tensors = _tensors_of(tensors)
    targets = [_like(one) for one in tensors]
    return _start(tensors, targets, name, chosen_op(average, op), 0, prescale_factor, postscale_factor)


def grouped_allreduce(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> list[Tensor]:
    """As allreduce for a list of tensors; not differentiable."""
    pairs = [compression.compress(one) for one in tensors]
    results = grouped_allreduce_async(
        [one for one, _ in pairs], average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()
    return [compression.decompress(r, context) for r, (_, context) in zip(results, pairs)]


def grouped_allreduce_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | Unsupported | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
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


# ---- BytePS's names ----


def _op_of(average: bool) -> Op:
    if isinstance(average, str):
        raise TypeError("the second argument is average, as in BytePS: give the name as name=%r" % average)
    return Average if average else Sum


def push_pull_async(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle[Tensor]:
    """allreduce_async under BytePS's name. Larger priorities go first; `version` is ignored."""
    del version
    return allreduce_async(tensor, None, name, _op_of(average), priority=priority)


def push_pull_async_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle[Tensor]:
    """allreduce_async_ under BytePS's name."""
    del version
    return allreduce_async_(tensor, None, name, _op_of(average), priority=priority)


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Compressor = Compression.none,
) -> Tensor:
    """allreduce under BytePS's name."""
    del version, priority  # neither matters, because this call waits at once
    return allreduce(tensor, None, name, compression, _op_of(average))


def push_pull_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Tensor:
    """allreduce_ under BytePS's name."""
    return push_pull_async_inplace(tensor, average, name, version, priority).wait()


def push_pull_group_sync_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle[Tensor]:
    """push_pull_async_inplace: rounds of a tensor never overlap, so a group needs no special care."""
    return push_pull_async_inplace(tensor, average, name, version, priority)


def declare(name: str) -> None:
    """Does nothing but check the name: BytePS declares ahead of time, Addend at the first use."""
    if not isinstance(name, str):
        raise TypeError("a tensor's name must be a str, not %r" % (name,))
