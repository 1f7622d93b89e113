"""Operations of a process group, as torch.distributed knows them: Work, with its futures and errors."""

import collections
import functools
import threading

import torch.distributed as dist
from torch._C._distributed_c10d import Work

from .._errors import Error
from . import _completions

_DIST_ERROR = getattr(dist, "DistBackendError", RuntimeError)  # from PyTorch 2.0 on


@functools.lru_cache(maxsize=None)
def _class_of(error_class):
    return type(error_class.__name__, (error_class, _DIST_ERROR), {
        "__module__": error_class.__module__,
        "__doc__": error_class.__doc__,
        "__reduce__": lambda self: (error_class, (str(self), self.code)),
    })


def as_dist_error(error, group):
    """An error of Addend's that is also the error that torch.distributed's users catch."""
    return _class_of(type(error))("%s: %s" % (group, error), error.code)


class GroupWork(Work):
    """An operation under way. `handle`: a Handle whose result is the list of `tensors`."""

    def __init__(self, handle, tensors, group, limit_s):
        super().__init__()
        self._handle = handle
        self._tensors = tensors
        self._group = group
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._completion = None

    def wait(self, timeout=None):
        """Returns True when the result is there. `timeout`: a timedelta; none, or 0: the group's."""
        limit = timeout.total_seconds() if timeout is not None else 0
        self._wait(limit if limit > 0 else self._limit_s)
        return True

    def _wait(self, limit_s):
        try:
            return self._handle.wait(limit_s)
        except Error as error:
            raise as_dist_error(error, self._group) from None

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self._handle.done()

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        if self.is_completed():
            try:
                self._wait(self._limit_s)
            except Error as error:
                return error
        return None

    def result(self):
        return self._tensors

    def get_future(self):
        """A future of the list of tensors. Its callbacks may wait for other operations."""
        with self._lock:
            if self._completion is None:
                self._completion = _completions.current().add(_Result(self), self._tensors[0].device)
            return self._completion.future

    getFuture = get_future


class _Result:
    """A GroupWork as the operation of a Completion: wait() returns the tensors."""

    def __init__(self, work):
        self._work = work

    def rounds(self):
        return self._work._handle.rounds()

    def wait(self):
        self._work.wait()
        return self._work.result()


class Kept:
    """Keeps the Python half of works alive where PyTorch's C++ half does not: before 2.7.

    C++ code asks a work for its future at once, or waits for it before it starts a few more.
    """

    _LAST = 64

    def __init__(self):
        self._lock = threading.Lock()
        self._works = collections.deque()

    def keep(self, work):
        with self._lock:
            self._works.append(work)
            while len(self._works) > self._LAST and self._works[0].is_completed():
                self._works.popleft()
        return work


def start(begin, tensors, group, limit_s):
    """Calls begin(), which returns a Handle; returns the work."""
    try:
        return GroupWork(begin(), tensors, group, limit_s)
    except Error as error:
        raise as_dist_error(error, group) from None
