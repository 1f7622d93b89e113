"""reducescatter and alltoall: what other ranks have for this rank."""

from __future__ import annotations

from typing import Any, Iterable, Sequence, Union

import torch
from torch import Tensor

from .. import _core, rank
from .._core import Average, Op, Sum
from .._errors import INVALID, Error
from . import _sets
from ._gather import grouped_allgather
from ._handle import Handle
from ._packing import pack, unpack, words_of
from ._reduce import grouped_allreduce_async
from ._sets import ProcessSet
from ._tensors import check_tensor, push_tensor
from ._two_steps import TwoSteps
from .compression import Compression
from .compression.cast import Compressor

Splits = Union[Tensor, Sequence[int]]


# ---- reducescatter ----


def _part(tensor: Tensor, process_set: ProcessSet) -> slice:
    """The rows of this rank: the first ranks have one more where the rows do not come out even."""
    if tensor.dim() == 0:
        raise ValueError("reducescatter takes tensors of at least one dimension; reshape(1) makes one of a scalar")
    ranks, place = len(process_set.ranks), process_set.ranks.index(rank())
    rows, more = divmod(tensor.shape[0], ranks)
    first = place * rows + min(place, more)
    return slice(first, first + rows + (place < more))


def _check_scattered(op: object) -> None:
    if op not in (Average, Sum):
        raise Error("reducescatter takes op=Average or Sum, not %r" % (op,), INVALID)


def grouped_reducescatter_async(
    tensors: Iterable[Tensor],
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Tensor]]:
    """As reducescatter_async for a list of tensors; synchronize(handle) returns the list."""
    _check_scattered(op)
    chosen, tensors = _sets.chosen(process_set), list(tensors)
    parts = [_part(one, chosen) for one in tensors]
    name = None if name is None else "addend.reducescatter/" + name
    reducing = grouped_allreduce_async(tensors, None, name, op, prescale_factor, postscale_factor, chosen)
    return Handle([reducing], lambda: [one[part].clone() for one, part in zip(reducing.wait(), parts)])


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Tensor]:
    """Starts a reducescatter and returns a handle: see reducescatter."""
    group = grouped_reducescatter_async([tensor], name, op, process_set, prescale_factor, postscale_factor)
    return Handle([group], lambda: group.wait()[0])


class _Scattered(torch.autograd.Function):
    """The gradient of a rank's tensor are all ranks' gradients of their parts, times the factors;
    with Sum also times the number of ranks, as Horovod has it.
    """

    @staticmethod
    def forward(context, name, op, process_set, factors, *tensors):
        context.process_set = process_set
        context.factor = factors[0] * factors[1] * (len(process_set.ranks) if op == Sum else 1)
        return tuple(grouped_reducescatter_async(tensors, name, op, process_set, *factors).wait())

    @staticmethod
    def backward(context, *gradients):
        scaled = [one * context.factor for one in gradients]
        return (None, None, None, None, *grouped_allgather(scaled, process_set=context.process_set))


def grouped_reducescatter(
    tensors: Iterable[Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op = Average,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """As reducescatter for a list of tensors."""
    _check_scattered(op)
    chosen, factors = _sets.chosen(process_set), (prescale_factor, postscale_factor)
    pairs = [compression.compress(one) for one in tensors]
    sent = [one for one, _ in pairs]
    if torch.is_grad_enabled() and any(one.requires_grad for one in sent):
        parts = _Scattered.apply(name, op, chosen, factors, *sent)
    else:
        parts = grouped_reducescatter_async(sent, name, op, chosen, *factors).wait()
    return [compression.decompress(part, context) for part, (_, context) in zip(parts, pairs)]


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op = Average,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the average of all ranks' tensors (`op`: or sum). Differentiable.

    Rows go to the ranks in their order, as evenly as they can; the first ranks have one more where
    they do not come out even. Every rank receives all rows, and keeps its own.
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


# ---- alltoall ----


def _rows_to_send(tensor: Tensor, splits: Splits | None, process_set: ProcessSet) -> list[int]:
    check_tensor(tensor)
    if tensor.dim() == 0:
        raise ValueError("alltoall takes tensors of at least one dimension; reshape(1) makes one of a scalar")
    ranks = len(process_set.ranks)
    if splits is None:
        if tensor.shape[0] % ranks:
            raise ValueError("alltoall without splits divides %d rows by %d ranks" % (tensor.shape[0], ranks))
        return [tensor.shape[0] // ranks] * ranks
    rows = splits.tolist() if isinstance(splits, Tensor) else list(splits)
    if not isinstance(rows, list) or any(not isinstance(one, int) or one < 0 for one in rows):
        raise ValueError("the splits of alltoall are a list of numbers of rows, not %.80r" % (splits,))
    if len(rows) != ranks:
        raise ValueError("alltoall has %d splits for %d ranks" % (len(rows), ranks))
    if sum(rows) > tensor.shape[0]:
        raise ValueError("the splits of alltoall take %d rows, but the tensor has %d" % (sum(rows), tensor.shape[0]))
    return rows


class _Alltoall(TwoSteps):
    """An alltoall under way: the numbers of rows, then the rows, each between two ranks alone."""

    KIND = "alltoall"

    def __init__(self, tensor, rows, name, process_set):
        self._tensor = tensor
        self._rows = rows
        self._place = process_set.rank()
        self._table = torch.empty((len(rows), len(rows)), dtype=torch.int64)
        super().__init__(name, process_set)

    def _first(self):
        table = torch.zeros_like(self._table)
        table[self._place] = torch.tensor(self._rows)
        return push_tensor(table, self._table, self.name + "/rows", Sum, 0, self.process_set.participants)

    def result(self):
        """Returns (rows for this rank, their numbers by sender)."""
        return self.take().to(self._tensor.device), self._table[:, self._place]

    def _second(self):
        tensor, place = self._tensor, self._place
        sent = torch.split(tensor[: sum(self._rows)], self._rows)
        received = [(int(count), *tensor.shape[1:]) for count in self._table[:, place]]
        outgoing, incoming = [], {}
        for other in range(len(self._rows)):
            if other == place:
                continue
            if self._rows[other]:
                outgoing.append(self._between(place, other, pack(sent[other])))
            if received[other][0]:
                room = torch.empty(words_of(received[other], tensor.dtype), dtype=torch.int32)
                incoming[other] = self._between(other, place, room)
        for one, _ in (*outgoing, *incoming.values()):
            _core.finish_once(one)
        parts = []
        for other, shape in enumerate(received):
            if other == place:
                parts.append(sent[place].detach().cpu())
            elif other in incoming:
                parts.append(unpack(incoming[other][1], tensor.dtype, shape))
        return torch.cat(parts) if parts else tensor.new_empty((0, *tensor.shape[1:]))

    def _between(self, sender, receiver, words):
        """Starts the way of the words; of the receiver, their room."""
        pair = tuple(sorted((self.process_set.ranks[sender], self.process_set.ranks[receiver])))
        declared = _core.declare(
            "%s/%d-%d" % (self.name, sender, receiver), (words.numel(),), _core.DTYPE_CODES["int32"],
            _core.BROADCAST, pair,
        )
        source = words.data_ptr() if sender == self._place else None
        return _core.Handle(declared, source, words.data_ptr(), 0, words), words


def _started(tensor: Tensor, splits: Splits | None, name: str | None, process_set: ProcessSet) -> _Alltoall:
    rows = _rows_to_send(tensor, splits, process_set)
    started = []

    def begin(chosen):
        prefix = "" if name is None else "addend.alltoall/"
        started.append(_Alltoall(tensor.detach(), rows, prefix + chosen, process_set))
        return started[0]

    kind = "alltoall/%s%s" % (tensor.dtype, list(tensor.shape[1:]))
    process_set.start(name, kind, begin)
    return started[0]


def _shaped(result: tuple[Tensor, Tensor], splits: Splits | None) -> Any:
    rows, numbers = result
    if splits is None:
        return rows
    return rows, numbers.to(splits.dtype).to(splits.device) if isinstance(splits, Tensor) else numbers.int()


def alltoall_async(
    tensor: Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle[Any]:
    """Starts an alltoall and returns a handle: see alltoall."""
    one = _started(tensor, splits, name, _sets.chosen(process_set))
    return Handle([one], lambda: _shaped(one.result(), splits))


class _Exchanged(torch.autograd.Function):
    """The gradients of rows go back to the ranks from which the rows came."""

    @staticmethod
    def forward(context, tensor, splits, name, process_set):
        one = _started(tensor, splits, name, process_set)
        one.wait()
        rows, numbers = one.result()
        context.numbers, context.process_set, context.shape = numbers, process_set, tensor.shape
        context.mark_non_differentiable(numbers)
        return rows, numbers

    @staticmethod
    def backward(context, gradient, _):
        back, _ = alltoall(gradient.contiguous(), context.numbers, process_set=context.process_set)
        if back.shape[0] < context.shape[0]:  # the splits left rows out
            rest = back.new_zeros((context.shape[0] - back.shape[0], *context.shape[1:]))
            back = torch.cat([back, rest])
        return back, None, None, None


def alltoall(
    tensor: Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Sends rows of `tensor` to each rank, and returns the rows that the ranks have for this rank, in
    the order of the ranks. Differentiable.

    `splits`: the number of rows for each rank; the result is then a pair of the rows and of their
    numbers by sender. None: as many for each rank. All ranks give the same dtype and the same further
    dimensions.
    """
    chosen = _sets.chosen(process_set)
    if tensor.requires_grad and torch.is_grad_enabled():
        return _shaped(_Exchanged.apply(tensor, splits, name, chosen), splits)
    return alltoall_async(tensor, splits, name, chosen).wait()
