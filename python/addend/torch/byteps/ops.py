"""BytePS's operations that addend.torch has in another form, or not."""

from __future__ import annotations

import threading
import time

from torch import Tensor

from ... import init, shutdown, statistics
from .._handle import Handle
from .._push_pull import push_pull_async_inplace


class _Group:
    """Counts the gradients of a backward pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = 1
        self._pushed = 0

    def set_size(self, size: int) -> None:
        with self._lock:
            self._size, self._pushed = size, 0

    def count(self) -> int:
        with self._lock:
            self._pushed = self._pushed % self._size + 1
            return self._pushed


_group = _Group()


def byteps_torch_set_num_grads(num_grads: int) -> None:
    """Sets the number of tensors of a group: see push_pull_group_sync_inplace."""
    if not isinstance(num_grads, int) or num_grads < 1:
        raise ValueError("a group has at least one gradient, not %r" % (num_grads,))
    _group.set_size(num_grads)


def push_pull_group_sync_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> tuple[Handle[Tensor], int]:
    """push_pull_async_inplace; returns the handle, and how many tensors of the group were pushed so far."""
    return push_pull_async_inplace(tensor, average, name, version, priority), _group.count()


def suspend() -> None:
    """Leaves the job; resume() joins it again. Operations under way are dropped."""
    shutdown()


def resume(
    num_workers: int | None = None,
    num_servers: int | None = None,
    global_rank: int | None = None,
    context: object = None,
) -> None:
    """Joins the job's next generation, which begins when all ranks have joined.

    Which nodes the job has is the agents' knowledge, and servers come and go without the trainers:
    the numbers are ignored.
    """
    del num_workers, num_servers, global_rank, context
    init()


class _Speed:
    """Bytes per second that this process has pushed, over the last ten seconds or longer."""

    INTERVAL_S = 10.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: tuple[float, int] | None = None
        self._last = (0, 0.0)

    def now(self) -> tuple[int, float]:
        pushed, at = statistics()["copied_in_bytes"], time.monotonic()
        with self._lock:
            if self._since is None or pushed < self._since[1]:  # the first call, or another job
                self._since = (at, pushed)
            elif at - self._since[0] >= self.INTERVAL_S:
                rate = (pushed - self._since[1]) / (at - self._since[0]) / 1e6
                self._last = (int(time.time() * 1000), rate)
                self._since = (at, pushed)
            return self._last


_speed = _Speed()


def get_pushpull_speed() -> tuple[int, float]:
    """(milliseconds since 1970, megabytes per second that this rank has pushed), measured anew when
    ten seconds have passed since the last measurement; (0, 0.0) before the first.
    """
    return _speed.now()
