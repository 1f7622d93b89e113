"""Every rank's tensor, or object, on every rank."""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import Tensor

from .. import _core, _errors, rank
from .._core import Average, Sum
from . import _sets
from ._handle import Handle
from ._packing import dumped, loaded, pack, unpack, words_of
from ._rounds import start_reduce
from ._sets import ProcessSet, global_process_set
from ._tensors import check_tensor, push_tensor
from ._two_steps import TwoSteps


def gather_async(tensor, name, priority=0, process_set=global_process_set):
    """Starts the exchange of one tensor of each rank of the set, all of the same shape and dtype.

    The result has an additional first dimension, the set's size: result[i] is the tensor of its rank
    i, byte for byte. The operation's tensors stay declared, one per rank under `name`/: for tensors
    that are gathered repeatedly.
    """
    check_tensor(tensor)
    own = pack(tensor)
    rounds, rooms = _exchange(own, [own.numel()] * process_set.size(), name, priority, process_set)

    def finish():
        parts = [unpack(room, tensor.dtype, tensor.shape) for room in rooms]
        return torch.stack(parts).to(tensor.device)

    return Handle(rounds, finish)


def _exchange(own, words, name, priority, process_set):
    """Starts the exchange of each rank's int32 values, `words[i]` of them from rank i of the set.

    Each rank's values are a broadcast with that rank as root: a rank sends only its own part.
    """
    rounds, rooms = [], []
    for i, (root, count) in enumerate(zip(process_set.ranks, words)):
        room = torch.empty(count, dtype=torch.int32)
        declared = _core.declare(
            "%s/%d" % (name, i), (count,), _core.DTYPE_CODES["int32"], _core.BROADCAST, process_set.participants
        )
        source = own.data_ptr() if root == rank() else None
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


class _Allgather(TwoSteps):
    """An allgather under way: descriptions of the tensors, then the values."""

    KIND = "allgather"

    def __init__(self, tensor, name, process_set):
        self._tensor = tensor
        self._own = pack(tensor)
        self._descriptions = torch.empty((process_set.size(), 2 + _DIMS), dtype=torch.int64)
        self.first_dimensions = None  # of all ranks; set on success
        super().__init__(name, process_set)

    def _first(self):
        tensor = self._tensor
        descriptions = torch.zeros_like(self._descriptions)
        own = [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        descriptions[self.process_set.rank(), : len(own)] = torch.tensor(own)
        return push_tensor(
            descriptions, self._descriptions, self.name + "/shapes", Sum, 0, self.process_set.participants
        )

    def result(self):
        # Moved here, since a device's memory belongs to the stream on which it is first used.
        return self.take().to(self._tensor.device)

    def own_part(self):
        """This rank's part of the result."""
        place = self.process_set.rank()
        first = sum(self.first_dimensions[:place])
        return slice(first, first + self.first_dimensions[place])

    def _second(self):
        shapes = self._checked_shapes()
        tensor = self._tensor
        words = [words_of(shape, tensor.dtype) for shape in shapes]
        # The parts' sizes change from call to call, so their tensors do not stay declared.
        rounds, rooms = _exchange(self._own, words, self.name, 0, self.process_set)
        for one in rounds:
            _core.finish_once(one)
        parts = [unpack(room, tensor.dtype, shape) for room, shape in zip(rooms, shapes)]
        self.first_dimensions = [shape[0] for shape in shapes]
        return torch.cat(parts)

    def _checked_shapes(self):
        """All ranks' shapes; raises the same error on all ranks if the tensors do not match."""
        found, ranks = [], self.process_set.ranks
        for dtype, dims, *shape in self._descriptions.tolist():
            found.append((_DTYPES[dtype], tuple(shape[:dims])))
        for i, (dtype, shape) in enumerate(found):
            if (dtype, shape[1:]) != (found[0][0], found[0][1][1:]):
                raise _errors.make_error(
                    _errors.MISMATCH,
                    'allgather "%s": rank %d has %s%s but rank %d has %s%s; only the first dimensions may '
                    "differ"
                    % (self.name, ranks[0], found[0][0], list(found[0][1]), ranks[i], dtype, list(shape)),
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


def _start(tensor: Tensor, name: str | None, process_set: ProcessSet) -> _Allgather:
    """Starts an allgather and returns it. Unnamed operations share a kind, so that a mismatch is noticed."""
    started = []

    def begin(chosen):
        started.append(_Allgather(tensor, chosen if name is None else "addend.allgather/" + chosen, process_set))
        return started[0]

    process_set.start(name, "allgather", begin)
    return started[0]


def allgather_async(
    tensor: Tensor,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[Tensor]:
    """Starts an allgather and returns a handle: see allgather."""
    _check_gathered(tensor)
    started = _start(tensor.detach(), name, _sets.chosen(process_set))
    return Handle([started], started.result)


class _Differentiable(torch.autograd.Function):
    """The gradient of a rank's part is the average of all ranks' gradients of it, as Horovod has it."""

    @staticmethod
    def forward(context, name, process_set, *tensors):
        names = _names_of(name, tensors)
        started = [_start(tensor, one, process_set) for tensor, one in zip(tensors, names)]
        for one in started:
            one.wait()
        context.gathers = [(one.name + "/gradient", one.own_part()) for one in started]
        context.process_set = process_set
        return tuple(one.result() for one in started)

    @staticmethod
    def backward(context, *gradients):
        participants = context.process_set.participants
        averages = [torch.empty_like(one) for one in gradients]
        rounds = [
            start_reduce(gradient, average, name, Average, participants=participants)
            for gradient, average, (name, _) in zip(gradients, averages, context.gathers)
        ]
        try:
            for one in rounds:
                one.wait()
        finally:
            for name, _ in context.gathers:
                _forget(name)  # the next gradient may have another shape
        return (None, None, *(average[own] for average, (_, own) in zip(averages, context.gathers)))


def _forget(name):
    try:
        _core.undeclare(name)
    except _errors.Error:
        pass  # the job has failed, and the caller gets that error


def _names_of(name, tensors):
    if name is None or len(tensors) == 1:
        return [name] * len(tensors)
    return ["%s.%d" % (name, i) for i in range(len(tensors))]


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet | None = None) -> Tensor:
    """Concatenates all ranks' tensors along the first dimension, which may differ between ranks.

    The dtype and the other dimensions must be the same; otherwise every rank raises a
    MismatchError. Differentiable.
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Iterable[Tensor],
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[list[Tensor]]:
    """allgather_async of a list of tensors; synchronize(handle) returns the list."""
    tensors = _checked(tensors)
    names = _names_of(name, tensors)
    started = [allgather_async(tensor, one, process_set) for tensor, one in zip(tensors, names)]
    return Handle(started, lambda: [one.wait() for one in started])


def grouped_allgather(
    tensors: Iterable[Tensor],
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Tensor]:
    """allgather of a list of tensors; differentiable like it."""
    tensors = _checked(tensors)
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return list(_Differentiable.apply(name, _sets.chosen(process_set), *tensors))
    return grouped_allgather_async(tensors, name, process_set).wait()


def _checked(tensors: Iterable[Tensor]) -> list[Tensor]:
    tensors = list(tensors)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    for tensor in tensors:
        _check_gathered(tensor)
    return tensors


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """A list of all ranks' objects, in the order of the ranks: see broadcast_object() for which.

    The ranks of a job trust each other: loading an object can run code of its sender's choice.
    """
    started = _start(dumped(obj), name, _sets.chosen(process_set))
    started.wait()
    return [loaded(part) for part in started.result().split(started.first_dimensions)]
