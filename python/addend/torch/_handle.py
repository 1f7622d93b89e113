"""An operation on tensors that is under way."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Generic, Iterator, Optional, Sequence, TypeVar, cast

from .. import _core
from . import _gpu

T = TypeVar("T")


class Handle(Generic[T]):
    """The result of the *_async functions: one or several rounds, and the function that makes the
    result.

    Any thread may wait; the first thread that waits makes the result, once. On a GPU the result is
    made on that thread's current stream, and the streams of later callers wait for it.
    """

    def __init__(self, rounds: Sequence[Any], finish: Callable[[], T]) -> None:
        self._rounds = rounds
        self._finish: Optional[Callable[[], T]] = finish
        self._result: Optional[T] = None
        self._made_on = None  # the stream on which the result was made
        self._lock = threading.Lock()

    def rounds(self) -> Iterator[_core.Handle]:
        """The rounds of the operation, as handles of _core."""
        for one in self._rounds:
            if isinstance(one, Handle):
                yield from one.rounds()
            else:
                yield one

    def done(self) -> bool:
        """True when the operation has ended, in success or failure."""
        return all(one.done() for one in self._rounds)

    def wait(self, timeout: float | None = None) -> T:
        """Returns the result, or raises the error. `timeout` in seconds raises WaitTimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for one in self._rounds:
            one.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        with self._lock:
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None  # frees the intermediate memory
                self._made_on = _gpu.where_made(self._result)
            else:
                _gpu.follow(self._made_on)
            return cast(T, self._result)
