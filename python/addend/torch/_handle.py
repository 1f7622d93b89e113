"""An operation on tensors that is under way."""

import threading
import time

from . import _gpu


class Handle:
    """What the *_async functions return: one or several rounds, and what makes the result of them.

    Any thread may wait; the result is made once, in the thread that is the first to wait for it. On a
    GPU it is made on that thread's current stream, and the streams of those who come later wait for it.
    """

    def __init__(self, rounds, finish):
        self._rounds = rounds
        self._finish = finish
        self._result = None
        self._made_on = None  # a stream
        self._lock = threading.Lock()

    def rounds(self):
        """The rounds of which it is made, as the handles of _core."""
        for one in self._rounds:
            if isinstance(one, Handle):
                yield from one.rounds()
            else:
                yield one

    def done(self):
        """True when the operation has ended, well or not."""
        return all(one.done() for one in self._rounds)

    def wait(self, timeout=None):
        """The result, or the reason why there is none. `timeout` in seconds raises WaitTimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for one in self._rounds:
            one.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        with self._lock:
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None  # lets go of the memory in between
                self._made_on = _gpu.where_made(self._result)
            else:
                _gpu.follow(self._made_on)
            return self._result
