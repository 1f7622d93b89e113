"""One rank's tensors, parameters, optimizer state or any object, for all ranks."""

import torch

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
    """A broadcast under way: the root's `source`, into everybody's `target` of the same shape and dtype."""

    def __init__(self, source, target, root_rank, name):
        self._target = target.detach()
        code = _core.DTYPE_CODES.get(str(target.dtype)[len("torch.") :])
        is_root = rank() == root_rank
        # What can be summed travels as what it is, so that a rank with another shape or dtype is noticed.
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
        """The target with the root's values, once the round has ended."""
        room = self._room
        if self._packed:
            room = unpack(room, self._target.dtype, self._target.shape)
        if room is not self._target:
            self._target.copy_(room)
        return self._target

    def finish_once(self):
        """Waits for the result and forgets the tensor: for what is not broadcast again and again."""
        _core.finish_once(self.round)
        return self.result()


def _check_root(root_rank):
    if not 0 <= root_rank < size():
        raise ValueError("root_rank %d is no rank of this job of %d" % (root_rank, size()))


def _like(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _start(source, target, root_rank, name):
    def begin(chosen):
        one = _Broadcast(source, target, root_rank, chosen if name is None else _PREFIX + chosen)

        def finish():
            one.result()
            return target

        return Handle([one.round], finish)

    return _names.start(name, _kind(target), begin)


def _kind(tensor):
    return "broadcast/%s%s" % (tensor.dtype, list(tensor.shape))


def broadcast_async_(tensor, root_rank, name=None, process_set=None):
    """Starts `tensor` = the root's, in place, and returns a handle; synchronize(handle) returns it.

    All ranks give tensors of the same shape and dtype (any) under the same name; without a name, in the
    same order of calls.
    """
    check_process_set(process_set)
    check_tensor(tensor)
    _check_root(root_rank)
    return _start(tensor, tensor, root_rank, name)


def broadcast_async(tensor, root_rank, name=None, process_set=None):
    """As broadcast_async_, but the result is a tensor of its own."""
    check_process_set(process_set)
    check_tensor(tensor)
    _check_root(root_rank)
    return _start(tensor, _like(tensor), root_rank, name)


class _Differentiable(torch.autograd.Function):
    """All ranks' results come from the root's tensor: its gradient is the sum of theirs."""

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


def broadcast(tensor, root_rank, name=None, process_set=None):
    """Returns the root's tensor on every rank: see broadcast_async_. Differentiable."""
    check_process_set(process_set)
    check_tensor(tensor)
    _check_root(root_rank)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Differentiable.apply(tensor, root_rank, name)
    return broadcast_async(tensor, root_rank, name).wait()


def broadcast_(tensor, root_rank, name=None, process_set=None):
    """As broadcast, into `tensor` itself, which is returned; not differentiable."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_parameters(params, root_rank=0, prefix="parameters/"):
    """Gives every rank the root's values: of a state_dict(), of named_parameters(), or of a module.

    `prefix`: of the tensors' names, for models that different threads broadcast at the same time.
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
    # All are started before the first is awaited, so that they share one trip.
    started = [_Broadcast(tensor, tensor, root_rank, _PREFIX + prefix + name) for name, tensor in entries]
    for one in started:
        one.finish_once()


def broadcast_object(obj, root_rank=0, name=None):
    """Returns the root's object on every rank: what torch.save takes. The others' `obj` is ignored.

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


def broadcast_optimizer_state(optimizer, root_rank=0):
    """Gives every rank the root's optimizer state: hyperparameters, momenta, step counts."""
    content = _broadcast_dumped(optimizer.state_dict(), root_rank, "optimizer")
    if rank() != root_rank:
        # load_state_dict() takes it from there to where each parameter is.
        optimizer.load_state_dict(loaded(content, "cpu"))
