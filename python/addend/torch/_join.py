"""barrier, and join for ranks that have fewer batches than others."""

from __future__ import annotations

import collections
import threading
import weakref

import torch

from .. import _core, rank, size
from .. import barrier as _barrier
from .._core import Sum
from . import _sets
from ._sets import ProcessSet, global_process_set
from ._tensors import push_tensor

_NAME = "addend.join"


class _Control:
    """Tells ranks that wait in join() which optimizers the other ranks step.

    With the first gradient of a step a rank pushes a row of numbers, one per rank: its own number
    is 1 + the optimizer's number, the others are 0. Only ranks that have joined wait for the sum:
    they push zeros, and take part in the steps that the sum names. As every step has exactly one
    such round on all ranks, all ranks know which ranks were active in the last round.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._exchanges = []  # weak references, in the order in which the optimizers were made
        self._context = None  # the context of the following members
        self._round = None  # the last round, whose sum goes to _sum
        self._sum = None
        self._active = None  # the ranks in the last round that was not all zeros

    def register(self, exchange):
        """Registers an optimizer; returns its number, which has to be the same on all ranks."""
        with self._lock:
            self._exchanges.append(weakref.ref(exchange))
            return len(self._exchanges) - 1

    def announce(self, number):
        """Announces that this rank begins a step of that optimizer."""
        self._push(1 + number)

    def _push(self, value):
        with self._lock:
            self._renew()
            values = torch.zeros(size(), dtype=torch.int32)
            values[rank()] = value
            self._sum = torch.empty_like(values)
            self._round = push_tensor(values, self._sum, _NAME, Sum, 1)

    def _renew(self):
        if self._context != _core.context():
            self._context, self._round = _core.context(), None
            self._active = list(range(size()))

    def _last_active(self):
        with self._lock:
            self._renew()
        if self._round is not None:
            self._look()
        return self._active

    def _look(self):
        """Waits for the sum of the last round; returns {rank: announced optimizer}, without silent ranks."""
        self._round.wait()
        said = {who: value - 1 for who, value in enumerate(self._sum.tolist()) if value}
        if said:
            self._active = sorted(said)
        return said

    def _living(self):
        with self._lock:
            return {n: one() for n, one in enumerate(self._exchanges) if one() is not None}

    def join(self):
        for exchange in self._living().values():
            exchange.prepare_to_join()
        self._last_active()
        # Ranks may begin the steps of two optimizers in different orders, so that a round names
        # both, and the next round names both again: the count of announcements per rank and
        # optimizer decides.
        named = collections.defaultdict(collections.Counter)
        taken = collections.Counter()
        while True:
            self._push(0)
            said = self._look()
            if not said:
                return self._active[-1]
            for who, number in said.items():
                named[number][who] += 1
            handles = []
            for number in sorted(named):
                if max(named[number].values()) > taken[number]:
                    taken[number] += 1
                    handles += self._exchange(number, said).start_without_gradients()
            for handle in handles:
                handle.wait()

    def _exchange(self, number, said):
        exchange = self._living().get(number)
        if exchange is None:
            raise RuntimeError(
                "rank %d steps its DistributedOptimizer number %d, which this rank has not; make the "
                "same optimizers in the same order on all ranks, and keep them until join() returns"
                % (next(who for who, what in said.items() if what == number), number)
            )
        return exchange


control = _Control()


def join(device: object = -1) -> int:
    """For a rank that has no more batches: takes part in the others' steps until all have joined.

    Returns the rank that joined last (of several, the highest): the same on all ranks. The steps of
    every DistributedOptimizer continue with zeros from this rank; averages still divide by size().
    The weights of this rank stay unchanged and are out of date afterwards, except on the returned
    rank: broadcast_parameters(model.state_dict(), join()) updates them. This rank takes no part in
    the other ranks' operations beside steps of a DistributedOptimizer (allreduce, barrier, ...):
    those wait until the stall timeout ends them. Batches of an incomplete backward_passes_per_step
    are dropped. `device` is ignored.
    """
    del device
    return control.join()


def barrier(process_set: ProcessSet | None = None) -> None:
    """Returns when every rank of the job, or of the process set, has called it."""
    chosen = _sets.chosen(process_set)
    if chosen is global_process_set:
        return _barrier()
    token = torch.zeros(1, dtype=torch.int32)
    chosen.start("barrier", "", lambda name: push_tensor(token, token, name, Sum, 0, chosen.participants)).wait()
