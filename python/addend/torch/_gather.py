"""Every rank's tensor, or object, on every rank."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Iterable

import torch
from torch import Tensor

from .. import _core, _errors, rank, size
from .._core import Sum
from . import _names
from ._handle import Handle
from ._packing import dumped, loaded, pack, unpack, words_of
from ._rounds import start_reduce
from ._tensors import check_tensor, push_tensor
from ._unsupported import check_process_set


def gather_async(tensor, name, priority=0):
    """Starts the exchange of one tensor of each rank, all of the same shape and dtype.

    The result has an additional first dimension of size(): result[i] is rank i's tensor, byte for
    byte. The operation's tensors stay declared, one per rank under `name`/: for tensors that are
    gathered repeatedly.
    """
    check_tensor(tensor)
    own = pack(tensor)
    rounds, rooms = _exchange(own, [own.numel()] * size(), name, priority)

    def finish():
        parts = [unpack(room, tensor.dtype, tensor.shape) for room in rooms]
        return torch.stack(parts).to(tensor.device)

    return Handle(rounds, finish)


def _exchange(own, words, name, priority):
    """Starts the exchange of each rank's int32 values, `words[i]` of them from rank i.

    Each rank's values are a broadcast with that rank as root: a rank sends only its own part.
    """
    rounds, rooms = [], []
    for i, count in enumerate(words):
        room = torch.empty(count, dtype=torch.int32)
        declared = _core.declare(
            "%s/%d" % (name, i), (count,), _core.DTYPE_CODES["int32"], _core.BROADCAST
        )
        source = own.data_ptr() if i == rank() else None
        rounds.append(_core.Handle(declared, source, room.data_ptr(), priority, (own, room)))
        rooms.append(room)
    return rounds, rooms


# ---- tensors whose first dimensions differ ----

_DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
# The largest number of dimensions. A description holds the dtype, the number of dimensions, and the
# dimensions.
_DIMS = 14

_last: weakref.WeakValueDictionary[str, _Allgather] = weakref.WeakValueDictionary()  # name -> its last _Allgather
_last_lock = threading.Lock()


class _Allgather:
    """An allgather under way.

    First the ranks exchange descriptions of their tensors, then the values. A thread of its own
    waits in between, because the caller may not wait yet: ranks may wait for several operations in
    any order.
    """

    def __init__(self, tensor, name):
        self.name = name
        self._tensor = tensor
        self._own = pack(tensor)
        descriptions = torch.zeros((size(), 2 + _DIMS), dtype=torch.int64)
        own = [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        descriptions[rank(), : len(own)] = torch.tensor(own)
        self._descriptions = torch.empty_like(descriptions)
        self._result = self._error = None
        self.first_dimensions = None  # of all ranks; set on success
        self._ended = threading.Event()
        with _last_lock:
            # Rounds of a name follow each other, and so do the two halves of each allgather.
            self._former = _last.get(name)
            _last[name] = self
            self._round = push_tensor(descriptions, self._descriptions, name + "/shapes", Sum, 0)
        threading.Thread(target=self._run, name="addend-allgather", daemon=True).start()

    def done(self):
        return self._ended.is_set()

    def wait(self, timeout=None):
        if not self._ended.wait(timeout):
            raise _errors.make_error(
                _errors.TIMEOUT,
                'allgather "%s" is still under way after %g s; the operation goes on' % (self.name, timeout),
            )
        if self._error is not None:
            raise self._error

    def result(self):
        """Returns the result once, and releases it to the caller."""
        result, self._result = self._result, None
        # Moved here, since a device's memory belongs to the stream on which it is first used.
        return result.to(self._tensor.device)

    def rounds(self):
        yield self

    def _run(self):
        try:
            if self._former is not None:
                self._former._ended.wait()
                self._former = None
            self._round.wait()
            self._result = self._gather()
        except Exception as error:  # pylint: disable=broad-except
            self._error = error
        finally:
            self._ended.set()

    def _gather(self):
        shapes = self._checked_shapes()
        tensor = self._tensor
        words = [words_of(shape, tensor.dtype) for shape in shapes]
        # The parts' sizes change from call to call, so their tensors do not stay declared.
        rounds, rooms = _exchange(self._own, words, self.name, 0)
        for one in rounds:
            _core.finish_once(one)
        parts = [unpack(room, tensor.dtype, shape) for room, shape in zip(rooms, shapes)]
        self.first_dimensions = [shape[0] for shape in shapes]
        return torch.cat(parts)

    def _checked_shapes(self):
        """All ranks' shapes; raises the same error on all ranks if the tensors do not match."""
        found = []
        for dtype, dims, *shape in self._descriptions.tolist():
            found.append((_DTYPES[dtype], tuple(shape[:dims])))
        for i, (dtype, shape) in enumerate(found):
            if (dtype, shape[1:]) != (found[0][0], found[0][1][1:]):
                raise _errors.make_error(
                    _errors.MISMATCH,
                    'allgather "%s": rank 0 has %s%s but rank %d has %s%s; only the first dimensions may '
                    "differ" % (self.name, found[0][0], list(found[0][1]), i, dtype, list(shape)),
                )
        return [shape for _, shape in found]


def _check_gathered(tensor):
    check_tensor(tensor)
    if tensor.dtype not in _DTYPES:
        raise TypeError("addend cannot gather %s" % tensor.dtype)
    if not 1 <= tensor.dim() <= _DIMS:
        raise ValueError(
            "allgather takes tensors of 1 to %d dimensions, not of %d; reshape(1) makes one of a scalar"
            % (_DIMS, tensor.dim())
        )


def _start(tensor, name):
    """Starts an allgather and returns it. Unnamed operations share a kind, so that a mismatch is noticed."""
    started = []

    def begin(chosen):
        started.append(_Allgather(tensor, chosen if name is None else "addend.allgather/" + chosen))
        return started[0]

    _names.start(name, "allgather", begin)
    return started[0]


def allgather_async(
    tensor: Tensor,
    name: str | None = None,
    process_set: object = None,
) -> Handle[Tensor]:
    """Starts an allgather and returns a handle: see allgather."""
    check_process_set(process_set)
    _check_gathered(tensor)
    started = _start(tensor.detach(), name)
    return Handle([started], started.result)


class _Differentiable(torch.autograd.Function):
    """The gradient of a rank's part is the sum of all ranks' gradients of it."""

    @staticmethod
    def forward(context, tensor, name):
        started = _start(tensor, name)
        started.wait()
        first = sum(started.first_dimensions[: rank()])
        context.own = slice(first, first + tensor.shape[0])
        context.name = started.name + "/gradient"
        return started.result()

    @staticmethod
    def backward(context, gradient):
        total = torch.empty_like(gradient)
        try:
            start_reduce(gradient, total, context.name, Sum).wait()
        finally:
            _forget(context.name)  # the next gradient may have another shape
        return total[context.own], None


def _forget(name):
    try:
        _core.undeclare(name)
    except _errors.Error:
        pass  # the job has failed, and the caller gets that error


def allgather(tensor: Tensor, name: str | None = None, process_set: object = None) -> Tensor:
    """Concatenates all ranks' tensors along the first dimension, which may differ between ranks.

    The dtype and the other dimensions must be the same; otherwise every rank raises a
    MismatchError. Differentiable.
    """
    check_process_set(process_set)
    _check_gathered(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Differentiable.apply(tensor, name)
    return allgather_async(tensor, name).wait()


def grouped_allgather_async(
    tensors: Iterable[Tensor],
    name: str | None = None,
    process_set: object = None,
) -> Handle[list[Tensor]]:
    """allgather_async of a list of tensors; synchronize(handle) returns the list."""
    check_process_set(process_set)
    tensors = list(tensors)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    for tensor in tensors:
        _check_gathered(tensor)
    names = [None if name is None else "%s.%d" % (name, i) for i in range(len(tensors))]
    started = [allgather_async(tensor, one) for tensor, one in zip(tensors, names)]
    return Handle(started, lambda: [one.wait() for one in started])


def grouped_allgather(
    tensors: Iterable[Tensor],
    name: str | None = None,
    process_set: object = None,
) -> list[Tensor]:
    """allgather of a list of tensors; not differentiable."""
    return grouped_allgather_async(tensors, name, process_set).wait()


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """A list of all ranks' objects, in the order of the ranks; any object that torch.save accepts.

    The ranks of a job trust each other: loading an object can run code of its sender's choice.
    """
    started = _start(dumped(obj), name)
    started.wait()
    return [loaded(part) for part in started.result().split(started.first_dimensions)]
