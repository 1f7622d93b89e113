"""Operations of two steps: ranks exchange the sizes of their parts, and then the parts."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from .. import _errors
from ._sets import ProcessSet

_last: weakref.WeakValueDictionary[str, TwoSteps] = weakref.WeakValueDictionary()  # by name
_last_lock = threading.Lock()


class TwoSteps:
    """An operation under way.

    A thread of its own waits between the two steps, because the caller may not wait yet: ranks may
    wait for several operations in any order. Operations of a name follow each other.
    """

    KIND = ""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self.name = name
        self.process_set = process_set
        self._result: Any = None
        self._error: Exception | None = None
        self._ended = threading.Event()
        with _last_lock:
            # Rounds of a name follow each other, and so do the two halves of each operation.
            self._former = _last.get(name)
            _last[name] = self
            self._round = self._first()
        threading.Thread(target=self._run, name="addend-" + self.KIND, daemon=True).start()

    def _first(self) -> Any:
        """Starts the first step, and returns its round."""
        raise NotImplementedError

    def _second(self) -> Any:
        """Makes the result; the first step has ended."""
        raise NotImplementedError

    @property
    def tensor(self) -> Any:
        return self._round.tensor

    def rounds(self):
        yield self

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        if not self._ended.wait(timeout):
            raise _errors.make_error(
                _errors.TIMEOUT,
                '%s "%s" is still under way after %g s; the operation goes on' % (self.KIND, self.name, timeout or 0),
            )
        if self._error is not None:
            raise self._error

    def take(self) -> Any:
        """Returns the result once, and releases it to the caller."""
        result, self._result = self._result, None
        return result

    def _run(self):
        try:
            if self._former is not None:
                self._former._ended.wait()
                self._former = None
            self._round.wait()
            self._result = self._second()
        except Exception as error:  # pylint: disable=broad-except
            self._error = error
        finally:
            self._ended.set()
