"""Futures of operations, completed by threads of their own."""

import atexit
import ctypes
import itertools
import os
import threading

import torch

from .. import _core, _errors
from . import _gpu

_POLL_S = 0.5
_IDLE = 4  # threads that wait for the end of a round; more end after their work


class Completion:
    """An operation under way: completes its future when `rounds` rounds have ended.

    `operation` has rounds() and wait(), as a Handle has. `device`: where its result is made.
    """

    def __init__(self, operation, rounds, device):
        self._operation = operation
        self._device = device
        self._rounds_left = rounds
        on_gpu = device is not None and device.type == "cuda"
        self._source = torch.futures.Future(devices=[device] if on_gpu else None)
        self.future = self._source.then(_unwrap)

    def round_ended(self):
        """Returns True for the last round."""
        self._rounds_left -= 1
        return self._rounds_left <= 0

    def complete(self):
        # The future records the current stream's position; readers of its value wait for that on
        # the GPU.
        with _gpu.beside(self._device):
            try:
                result = self.wait()
            except Exception as error:  # pylint: disable=broad-except
                result = error
            self._source.set_result(result)

    def wait(self):
        # The first caller makes the result, on the stream on which the operation was started.
        with _gpu.beside(self._device):
            return self._operation.wait()


def _unwrap(source):
    # DDP takes the value in C++, where only an error raised in a callback counts as an error: DDP
    # would mistake an exception set by set_exception() for a tensor of the wrong type.
    value = source.value()
    if isinstance(value, Exception):
        raise value
    return value


def completed(value):
    """A future that has this value, or raises it."""
    source = torch.futures.Future()
    source.set_result(value)
    return source.then(_unwrap)


class _Completions:
    """The futures of one context. Its threads take the rounds in the order in which these end.

    A future's callbacks run in the thread that completes it, and may wait for another future (as
    PowerSGD's do). So there is always a thread that waits for the end of a round: before a thread
    completes a future, it starts another if no other waits.
    """

    def __init__(self, context):
        self.context = context
        self._lock = threading.Lock()  # of all that follows
        self._pending = {}  # tag -> Completion
        self._tags = itertools.count(1)
        self._threads = []
        self._waiting = 0  # threads that wait for the end of a round, or are about to
        self._over = False

    def add(self, operation, device=None):
        """Returns the Completion of an operation whose result is on `device`."""
        rounds = list(operation.rounds())
        completion = Completion(operation, len(rounds), device)
        with self._lock:
            over = self._over
            tagged = [] if over else [(next(self._tags), one) for one in rounds]
            self._pending.update((tag, completion) for tag, _ in tagged)
            if tagged and self._waiting == 0:
                self._start_thread()
        for tag, one in tagged:
            one.tag(tag)  # a round that has already ended is reported now
        if not tagged:
            completion.complete()
        return completion

    def alive(self):
        return not self._over

    def stop(self):
        with self._lock:
            self._over = True
            threads = self._threads
            self._pending.clear()
        for thread in threads:
            thread.join(2 * _POLL_S)

    def _start_thread(self):
        self._waiting += 1
        thread = threading.Thread(target=self._run, name="addend-torch", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _run(self):
        tag = ctypes.c_uint64()
        while not self._over:
            code = _core.lib.addend_next_done(self.context, _POLL_S, ctypes.byref(tag))
            if code == _errors.TIMEOUT:
                continue
            if code != _errors.OK:
                self._end()  # the job has failed, or this process has left it
                break
            completion = self._take(tag.value)
            if completion is None:
                continue
            completion.complete()
            del completion
            with self._lock:
                if self._waiting >= _IDLE:
                    return
                self._waiting += 1
        with self._lock:
            self._waiting -= 1

    def _take(self, tag):
        """The completion whose last round this is, for which this thread stops waiting; or None."""
        with self._lock:
            completion = self._pending.pop(tag, None)
            if completion is None or not completion.round_ended():
                return None
            self._waiting -= 1
            if self._waiting == 0 and not self._over:
                self._start_thread()
            return completion

    def _end(self):
        with self._lock:
            self._over = True
            left = set(self._pending.values())
            self._pending.clear()
        for completion in left:  # they have ended with the job's error
            completion.complete()


_lock = threading.Lock()
_current = None


def _forget_threads():
    global _lock, _current
    _lock = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_forget_threads)


def current():
    """The completions of this process's context."""
    global _current
    context = _core.context()
    with _lock:
        if _current is None or _current.context != context or not _current.alive():
            _current = _Completions(context)
        return _current


@atexit.register
def _stop_threads():
    # A thread that holds futures must not run while the interpreter shuts down.
    if _current is not None:
        _current.stop()
