"""Process sets: operations among some ranks of the job, under Horovod's names."""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterable, TypeVar, Union

import torch

from .. import _core, _errors, rank, size
from .._core import Max
from . import _names
from ._tensors import push_tensor

T = TypeVar("T")

_AGREEMENT = "addend.process_set"


class ProcessSet:
    """Some ranks of the job, or all of them (global_process_set): give it to an operation as
    process_set=. An operation that takes a root takes its rank in the job.

    add_process_set() makes it usable. `ranks`: ascending. `process_set_id`: None until then, and
    again after remove_process_set() or with the next job.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        given = list(ranks)
        if any(not isinstance(one, int) or one < 0 for one in given):
            raise ValueError("a ProcessSet takes the numbers of its ranks, not %.80r" % (ranks,))
        self._ranks = sorted(set(given))
        self._number: int | None = None
        self._context: int | None = None
        self._prefix = ""
        self._optimizers = 0
        self._unnamed: _names.Unnamed | None = None

    @property
    def ranks(self) -> list[int]:
        return self._ranks

    @property
    def process_set_id(self) -> int | None:
        added = self._context is not None and self._context == _core.joined()
        return self._number if added else None

    def __repr__(self) -> str:
        return "ProcessSet(process_set_id=%s, ranks=%s)" % (self.process_set_id, self.ranks)

    def included(self) -> bool:
        """Whether this rank belongs to it."""
        return rank() in self.ranks

    def size(self) -> int | None:
        """The number of its ranks. None: it was not added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's place in it; -1 if it does not belong to it. None: it was not added."""
        if self.process_set_id is None:
            return None
        return self.ranks.index(rank()) if self.included() else -1

    # ---- for operations of this package ----

    def next_optimizer(self) -> str:
        """The prefix of the next optimizer's names: all ranks of the set make theirs in the same order."""
        self._optimizers += 1
        return "%soptimizer/%d/" % (self._prefix, self._optimizers)

    def _add(self, number: int) -> None:
        self._number, self._context, self._optimizers = number, _core.context(), 0
        self._prefix = "addend.set/%d/" % number
        self._unnamed = _names.Unnamed("addend.unnamed_in_set/%d/" % number)

    def _remove(self) -> None:
        for prefix in (self._prefix, "addend.unnamed_in_set/%s/" % self._number):
            for tensor in _core.declared_under(prefix):
                _core.undeclare(tensor)
        self._number = None

    @property
    def participants(self) -> tuple[int, ...] | None:
        """As _core.declare() takes them."""
        return None if len(self.ranks) == size() else tuple(self.ranks)

    def start(self, name: str | None, kind: str, begin: Callable[[str], T]) -> T:
        """Calls begin(name) for the tensors' name in this set; without a name, the order of the calls
        chooses a name of that kind.
        """
        if name is None:
            assert self._unnamed is not None
            return self._unnamed.start(kind, begin)
        if not isinstance(name, str):
            raise TypeError("a tensor's name must be a str, not %r" % (name,))
        return begin(self._prefix + name)


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job."""

    def __init__(self) -> None:
        super().__init__([])
        self._unnamed = _names.Unnamed("addend.unnamed/")

    @property
    def ranks(self) -> list[int]:
        return list(range(size()))

    @property
    def process_set_id(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "addend.torch.global_process_set"

    def included(self) -> bool:
        return True

    def rank(self) -> int:
        return rank()

    def size(self) -> int:
        return size()

    @property
    def participants(self) -> None:
        return None


global_process_set = _GlobalProcessSet()


class _Added:
    """The process sets of the present job, in the order in which they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: int | None = None
        self._next = 1
        self._ranks: dict[int, tuple[int, ...]] = {}

    def add(self, one: ProcessSet) -> None:
        with self._lock:
            if self._context != _core.context():
                self._context, self._next, self._ranks = _core.context(), 1, {}
            ranks = tuple(one.ranks)
            if ranks in self._ranks.values() or len(ranks) == size():
                raise ValueError("there is a process set of ranks %s already" % list(ranks))
            one._add(self._next)
            self._ranks[self._next] = ranks
            self._next += 1

    def remove(self, number: int) -> None:
        with self._lock:
            self._ranks.pop(number, None)


_added = _Added()


def _agree(what: str, ranks: list[int]) -> None:
    """Raises a MismatchError if another rank says something else here. Waits for all ranks."""
    mine = _digest(what, ranks)
    value = torch.tensor([mine, -mine])
    push_tensor(value, value, _AGREEMENT, Max, 0).wait()
    if value.tolist() != [mine, -mine]:
        raise _errors.make_error(
            _errors.MISMATCH,
            "rank %d %ss the process set %s while another rank does something else: all ranks add and "
            "remove the same process sets in the same order" % (rank(), what, ranks),
        )


def _digest(what: str, ranks: list[int]) -> int:
    """A number for a set, the same in every process."""
    digest = 0 if what == "add" else 1
    for one in ranks:
        digest = (digest * 1_000_003 + one + 1) % (1 << 61)
    return digest


def add_process_set(process_set: Union[ProcessSet, Iterable[int]]) -> ProcessSet:
    """Makes a process set of these ranks, which all ranks of the job do in the same order, also those
    that do not belong to it. ValueError: the job has such a set, or has no such ranks.
    """
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if not one.ranks or one.ranks[-1] >= size():
        raise ValueError("a process set of ranks %s, in a job of ranks 0..%d" % (one.ranks, size() - 1))
    _agree("add", one.ranks)
    _added.add(one)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets the set, on all ranks. False: it is not there, or it is the set of all ranks."""
    number = process_set.process_set_id
    if not number:
        return False
    _agree("remove", process_set.ranks)
    _added.remove(number)
    process_set._remove()
    return True


def chosen(process_set: Any) -> ProcessSet:
    """The set of an operation's argument process_set. ValueError: this rank cannot use it."""
    if process_set is None or process_set is global_process_set:
        return global_process_set
    if not isinstance(process_set, ProcessSet):
        raise TypeError("process_set must be an addend.torch.ProcessSet, not %.80r" % (process_set,))
    if process_set.process_set_id is None:
        raise ValueError(
            "%r was not added, or was removed: call add_process_set() on all ranks" % (process_set,)
        )
    if not process_set.included():
        raise ValueError("rank %d does not belong to %r" % (rank(), process_set))
    return process_set
