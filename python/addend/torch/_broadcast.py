"""Broadcast of a rank's tensors, parameters, optimizer state or any object to all ranks."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from .. import _core, rank, size
from .._core import Average
from . import _sets
from ._handle import Handle
from ._packing import dumped, loaded, pack, unpack, words_of
from ._rounds import start_reduce
from ._sets import ProcessSet, global_process_set
from ._tensors import can_receive, check_tensor, on_host

_PREFIX = "addend.broadcast/"


class Broadcast:
    """A broadcast under way: the root's `source`, into every rank's `target` of the same shape and dtype."""

    def __init__(self, source, target, root_rank, name, participants=None):
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
        declared = _core.declare(name, tuple(self._room.shape), code, _core.BROADCAST, participants)
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


def _check_root(root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    if process_set is global_process_set:
        if not 0 <= root_rank < size():
            raise ValueError("root_rank %d is no rank of this job of %d" % (root_rank, size()))
    elif root_rank not in process_set.ranks:
        raise ValueError("root_rank %d does not belong to %r" % (root_rank, process_set))


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _start(
    source: Tensor,
    target: Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> Handle[Tensor]:
    def begin(chosen):
        prefix = "" if name is None else _PREFIX
        one = Broadcast(source, target, root_rank, prefix + chosen, process_set.participants)

        def finish():
            one.result()
            return target

        return Handle([one.round], finish)

    return process_set.start(name, "%s from %d" % (_kind(target), root_rank), begin)


def _kind(tensor):
    return "broadcast/%s%s" % (tensor.dtype, list(tensor.shape))


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[Tensor]:
    """Starts the copy of the root's tensor into `tensor`; returns a handle: synchronize(handle)
    returns `tensor`.

    All ranks give tensors of the same shape and dtype (any dtype) under the same name, or without a
    name in the same order of calls. `root_rank` is a rank of the job, also in a process set.
    """
    chosen = _sets.chosen(process_set)
    check_tensor(tensor)
    _check_root(root_rank, chosen)
    return _start(tensor, tensor, root_rank, name, chosen)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[Tensor]:
    """As broadcast_async_, but the result is a new tensor."""
    chosen = _sets.chosen(process_set)
    check_tensor(tensor)
    _check_root(root_rank, chosen)
    return _start(tensor, _like(tensor), root_rank, name, chosen)


class _Differentiable(torch.autograd.Function):
    """The gradient of the root's tensor is the average of all ranks' gradients of their results, as
    Horovod has it.
    """

    @staticmethod
    def forward(context, tensor, root_rank, name, process_set):
        context.arguments = (root_rank, name, process_set)
        return broadcast_async(tensor, root_rank, name, process_set).wait()

    @staticmethod
    def backward(context, gradient):
        root_rank, name, process_set = context.arguments
        name = None if name is None else _PREFIX + name + "/gradient"
        average, participants = _like(gradient), process_set.participants
        process_set.start(
            name,
            _kind(gradient) + "/gradient",
            lambda chosen: start_reduce(gradient, average, chosen, Average, participants=participants),
        ).wait()
        return (average if rank() == root_rank else torch.zeros_like(average)), None, None, None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Tensor:
    """Returns the root's tensor on every rank: see broadcast_async_. Differentiable."""
    chosen = _sets.chosen(process_set)
    check_tensor(tensor)
    _check_root(root_rank, chosen)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Differentiable.apply(tensor, root_rank, name, chosen)
    return broadcast_async(tensor, root_rank, name, chosen).wait()


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Tensor:
    """As broadcast, into `tensor` itself, which is returned. Not differentiable."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_parameters(
    params: Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Tensor],
    root_rank: int = 0,
    prefix: str = "parameters/",
) -> None:
    """Gives every rank the root's values of a state_dict(), of named_parameters(), of parameters(),
    or of a module.

    `prefix` starts the tensors' names; threads that broadcast models at the same time need
    different prefixes.
    """
    _check_root(root_rank)
    entries = _entries_of(params)
    # All broadcasts start before the first is awaited, so that they share one round trip.
    started = [Broadcast(tensor, tensor, root_rank, _PREFIX + prefix + name) for name, tensor in entries]
    for one in started:
        one.finish_once()


def _entries_of(params: Any) -> list[tuple[str, Tensor]]:
    if isinstance(params, torch.nn.Module):
        params = params.state_dict()
    entries = list(params.items()) if hasattr(params, "items") else list(params)
    # The order of parameters() is that of the model, the same on all ranks.
    entries = [(str(i), one) if torch.is_tensor(one) else one for i, one in enumerate(entries)]
    for entry in entries:
        if not (isinstance(entry, tuple) and len(entry) == 2 and torch.is_tensor(entry[1])):
            raise TypeError(
                "broadcast_parameters takes a state_dict(), named_parameters(), pairs of a name and a "
                "tensor, or parameters(), but one entry is %.80r" % (entry,)
            )
        check_tensor(entry[1])
    if len({name for name, _ in entries}) < len(entries):
        raise ValueError("broadcast_parameters was given a name twice")
    return entries


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Returns the root's object on every rank: any that torch.save accepts, and with the package
    cloudpickle also closures. The other ranks' `obj` is ignored. If the root cannot send its object,
    all ranks raise an error.

    The ranks of a job trust each other: loading an object can run code of the root's choice.
    """
    return loaded(_broadcast_dumped(obj, root_rank, name or "object", _sets.chosen(process_set)))


def _broadcast_dumped(value, root_rank, name, process_set=global_process_set):
    """The bytes of the root's value."""
    _check_root(root_rank, process_set)
    content, problem = torch.empty(0, dtype=torch.uint8), None
    if rank() == root_rank:
        try:
            content = dumped(value)
        except Exception as error:  # pylint: disable=broad-except  # whatever an object raises
            problem = error
    length = torch.tensor([-1 if problem else content.numel()])
    participants = process_set.participants

    def exchange(tensor, target, part):
        chosen = []

        def begin(whole):
            chosen.append(Broadcast(tensor, target, root_rank, _PREFIX + whole + part, participants))

        process_set.start(name, "", begin)
        return chosen[0].finish_once()

    length = exchange(length, length, "/bytes")
    if problem is not None:
        raise problem
    if length < 0:
        raise TypeError("rank %d cannot send its object: its own error says why" % root_rank)
    return exchange(content, torch.empty(int(length), dtype=torch.uint8), "")


def broadcast_optimizer_state(
    optimizer: Optimizer,
    root_rank: int = 0,
    model: Module | None = None,
) -> None:
    """Gives every rank the root's optimizer state: hyperparameters, momenta, step counts.

    As with Horovod, an optimizer without state makes a step of zero gradients first, which creates
    the state (momenta of zeros, a step count), and gradients are zero afterwards; but no weight
    changes. `model` names the parameters whose gradients are sparse: those of its Embedding layers
    with sparse=True.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast: it has no fixed form")
    if not optimizer.state_dict()["state"]:
        _create_state(optimizer, model)
    content = _broadcast_dumped(optimizer.state_dict(), root_rank, "optimizer")
    if rank() != root_rank:
        # load_state_dict() moves the state from host memory to each parameter's device.
        optimizer.load_state_dict(loaded(content, "cpu"))


def _create_state(optimizer, model):
    sparse = {
        id(parameter)
        for module in (model.modules() if model is not None else ())
        if getattr(module, "sparse", False) is True
        for parameter in module.parameters(recurse=False)
    }
    weights = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                weights.append((parameter, parameter.detach().clone()))
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
                if id(parameter) in sparse or isinstance(optimizer, torch.optim.SparseAdam):
                    parameter.grad = parameter.grad.to_sparse()
    # The step of the user's class, which waits for no other rank.
    kind = next(one for one in type(optimizer).__mro__ if not hasattr(one, "addend_mixin"))
    kind.step(optimizer)
    with torch.no_grad():
        for parameter, value in weights:  # weight decay has changed it
            parameter.copy_(value)
