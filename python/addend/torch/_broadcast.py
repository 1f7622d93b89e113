"""Broadcast of a rank's tensors, parameters, optimizer state or any object to all ranks."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from .. import _core, rank, size
from .._core import Sum
from . import _names
from ._handle import Handle
from ._packing import dumped, loaded, pack, unpack, words_of
from ._rounds import start_reduce
from ._tensors import can_receive, check_tensor, on_host
from ._unsupported import check_process_set

_PREFIX = "addend.broadcast/"


class _Broadcast:
    """A broadcast under way: the root's `source`, into every rank's `target` of the same shape and dtype."""

    def __init__(self, source, target, root_rank, name):
        self._target = target.detach()
        code = _core.DTYPE_CODES.get(str(target.dtype)[len("torch.") :])
        is_root = rank() == root_rank
        # A summable dtype travels unpacked, so that a rank with another shape or dtype is noticed.
        self._packed = code is None
        if self._packed:
            self._room = torch.empty(words_of(target.shape, target.dtype), dtype=torch.int32)
            values = pack(source) if is_root else None
            code = _core.DTYPE_CODES["int32"]
        else:
            direct = can_receive(target, target.dtype)
            self._room = self._target if direct else torch.empty(target.shape, dtype=target.dtype)
            values = on_host(source, source.dtype) if is_root else None
        declared = _core.declare(name, tuple(self._room.shape), code, _core.BROADCAST)
        address = None if values is None else values.data_ptr()
        self.round = _core.Handle(declared, address, self._room.data_ptr(), 0, (values, self._room))

    def result(self):
        """Returns the target with the root's values; the round must have ended."""
        room = self._room
        if self._packed:
            room = unpack(room, self._target.dtype, self._target.shape)
        if room is not self._target:
            self._target.copy_(room)
        return self._target

    def finish_once(self):
        """Waits for the result and undeclares the tensor: for tensors that are broadcast only once."""
        _core.finish_once(self.round)
        return self.result()


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < size():
        raise ValueError("root_rank %d is no rank of this job of %d" % (root_rank, size()))


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _start(source: Tensor, target: Tensor, root_rank: int, name: str | None) -> Handle[Tensor]:
    def begin(chosen):
        one = _Broadcast(source, target, root_rank, chosen if name is None else _PREFIX + chosen)

        def finish():
            one.result()
            return target

        return Handle([one.round], finish)

    return _names.start(name, _kind(target), begin)


def _kind(tensor):
    return "broadcast/%s%s" % (tensor.dtype, list(tensor.shape))


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: object = None,
) -> Handle[Tensor]:
    """Starts the copy of the root's tensor into `tensor`; returns a handle: synchronize(handle)
    returns `tensor`.

    All ranks give tensors of the same shape and dtype (any dtype) under the same name, or without a
    name in the same order of calls.
    """
    check_process_set(process_set)
    check_tensor(tensor)
    _check_root(root_rank)
    return _start(tensor, tensor, root_rank, name)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: object = None,
) -> Handle[Tensor]:
    """As broadcast_async_, but the result is a new tensor."""
    check_process_set(process_set)
    check_tensor(tensor)
    _check_root(root_rank)
    return _start(tensor, _like(tensor), root_rank, name)


class _Differentiable(torch.autograd.Function):
    """The gradient of the root's tensor is the sum of all ranks' gradients of their results."""

    @staticmethod
    def forward(context, tensor, root_rank, name):
        context.arguments = (root_rank, name)
        return broadcast_async(tensor, root_rank, name).wait()

    @staticmethod
    def backward(context, gradient):
        root_rank, name = context.arguments
        name = None if name is None else _PREFIX + name + "/gradient"
        total = _like(gradient)
        _names.start(
            name, _kind(gradient) + "/gradient", lambda chosen: start_reduce(gradient, total, chosen, Sum)
        ).wait()
        return (total if rank() == root_rank else torch.zeros_like(total)), None, None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: object = None,
) -> Tensor:
    """Returns the root's tensor on every rank: see broadcast_async_. Differentiable."""
    check_process_set(process_set)
    check_tensor(tensor)
    _check_root(root_rank)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Differentiable.apply(tensor, root_rank, name)
    return broadcast_async(tensor, root_rank, name).wait()


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: object = None,
) -> Tensor:
    """As broadcast, into `tensor` itself, which is returned. Not differentiable."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_parameters(
    params: Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
    root_rank: int = 0,
    prefix: str = "parameters/",
) -> None:
    """Gives every rank the root's values of a state_dict(), of named_parameters(), or of a module.

    `prefix` starts the tensors' names; threads that broadcast models at the same time need
    different prefixes.
    """
    _check_root(root_rank)
    if isinstance(params, torch.nn.Module):
        params = params.state_dict()
    entries = list(params.items()) if hasattr(params, "items") else list(params)
    for entry in entries:
        if not (isinstance(entry, tuple) and len(entry) == 2 and torch.is_tensor(entry[1])):
            raise TypeError(
                "broadcast_parameters takes a state_dict() or named_parameters(), pairs of a name "
                "and a tensor, but one entry is %.80r" % (entry,)
            )
        check_tensor(entry[1])
    if len({name for name, _ in entries}) < len(entries):
        raise ValueError("broadcast_parameters was given a name twice")
    # All broadcasts start before the first is awaited, so that they share one round trip.
    started = [_Broadcast(tensor, tensor, root_rank, _PREFIX + prefix + name) for name, tensor in entries]
    for one in started:
        one.finish_once()


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the root's object, any that torch.save accepts, on every rank. The other ranks' `obj`
    is ignored.

    The ranks of a job trust each other: loading an object can run code of the root's choice.
    """
    return loaded(_broadcast_dumped(obj, root_rank, name or "object"))


def _broadcast_dumped(value, root_rank, name):
    _check_root(root_rank)
    content = dumped(value) if rank() == root_rank else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([content.numel()])
    length = _Broadcast(length, length, root_rank, _PREFIX + name + "/bytes").finish_once()
    target = torch.empty(int(length), dtype=torch.uint8)
    return _Broadcast(content, target, root_rank, _PREFIX + name).finish_once()


def broadcast_optimizer_state(optimizer: Optimizer, root_rank: int = 0) -> None:
    """Gives every rank the root's optimizer state: hyperparameters, momenta, step counts."""
    content = _broadcast_dumped(optimizer.state_dict(), root_rank, "optimizer")
    if rank() != root_rank:
        # load_state_dict() moves the state from host memory to each parameter's device.
        optimizer.load_state_dict(loaded(content, "cpu"))
