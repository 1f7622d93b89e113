"""The communication hook of DistributedDataParallel.

The backward pass gives a bucket of gradients to the hook as soon as it is complete; the hook pushes
it and returns a future at once, so that the rest of the backward pass overlaps with the sum.
"""

import atexit
import ctypes
import hashlib
import itertools
import os
import threading

import torch

from .. import _core, _errors
from .._core import Average
from ._tensors import push_tensor

_POLL_S = 0.5


class _Completer:
    """One thread per context that fulfils the futures, in the order in which rounds end."""

    def __init__(self, context):
        self.context = context
        self._pending = {}  # tag -> (handle, future, buffer)
        self._tags = itertools.count(1)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="addend-torch", daemon=True)
        self._thread.start()

    def add(self, handle, buffer):
        source = torch.futures.Future()
        tag = next(self._tags)
        self._pending[tag] = (handle, source, buffer)
        handle.tag(tag)  # may have ended already: then it is reported now
        return source.then(_unwrap)

    def alive(self):
        return self._thread.is_alive()

    def stop(self):
        self._stop = True
        self._thread.join(2 * _POLL_S)

    def _run(self):
        tag = ctypes.c_uint64()
        while not self._stop:
            code = _core.lib.addend_next_done(self.context, _POLL_S, ctypes.byref(tag))
            if code == _errors.OK:
                self._complete(tag.value)
            elif code != _errors.TIMEOUT:
                break  # the job has failed or this process has left it
        # Whatever is left has ended with that error.
        for tag_left in [] if self._stop else list(self._pending):
            self._complete(tag_left)

    def _complete(self, tag):
        handle, source, buffer = self._pending.pop(tag)
        try:
            handle.wait()
        except Exception as error:  # pylint: disable=broad-except
            source.set_result(error)
        else:
            source.set_result(buffer)


def _completed(value):
    source = torch.futures.Future()
    source.set_result(value)
    return source.then(_unwrap)


def _unwrap(source):
    # DDP takes the value in C++, where only an error raised in a callback is an error: an exception
    # set by set_exception() would look to it like a tensor of the wrong type.
    value = source.value()
    if isinstance(value, Exception):
        raise value
    return value


_lock = threading.Lock()
_completer = None
_instances = itertools.count()


def _forget_thread():
    global _lock, _completer
    _lock = threading.Lock()
    _completer = None


os.register_at_fork(after_in_child=_forget_thread)


def _the_completer():
    global _completer
    context = _core.context()
    with _lock:
        if _completer is None or _completer.context != context or not _completer.alive():
            _completer = _Completer(context)
        return _completer


@atexit.register
def _stop_thread():
    # A thread that holds futures must not run while the interpreter is taken down.
    if _completer is not None:
        _completer.stop()


class HookState:
    """What the hook remembers of one model: pass it to register_comm_hook.

    `model` is the module or its DistributedDataParallel. Its parameters' names are the identity of
    the buckets, because DDP rebuilds its buckets after the first step: the tensors of buckets that
    are no more are undeclared, and their memory is freed. All ranks have to make their HookStates
    in the same order.
    """

    def __init__(self, model=None):
        self._prefix = "addend.ddp/%d/" % next(_instances)
        self._names = {}
        self._group_size = None
        if model is not None:
            self._names = {id(p): name for name, p in model.named_parameters()}
            group = getattr(model, "process_group", None)
            self._group_size = group.size() if group is not None else None
        self._known = {}  # identity of a bucket -> its tensor's name
        self._declared = set()  # tensor names of the last backward passes
        # Of the backward pass under way.
        self._queued = False  # _finish is going to run
        self._open = []  # (tensor name, handle)
        self._error = None

    def push(self, bucket):
        """Starts the bucket's average; the future's value is the bucket's buffer.

        An error is raised at the end of the backward pass: DDP calls this from C++, which would
        make a RuntimeError of it.
        """
        if bucket.index() == 0 or not self._queued:
            self._open, self._error, self._queued = [], None, True
            # Runs before DDP looks at the futures.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        try:
            return self._start(bucket)
        except Exception as error:  # pylint: disable=broad-except
            self._error = self._error or error
            return _completed(error)

    def _start(self, bucket):
        if self._group_size not in (None, _core.place(_core.lib.addend_size)):
            raise ValueError(
                "DistributedDataParallel works on %d ranks, but this Addend job has %d; start both "
                "with the same ranks"
                % (self._group_size, _core.place(_core.lib.addend_size))
            )
        buffer = bucket.buffer()
        name = self._tensor_name(bucket)
        # The last bucket holds the first layers, which the next forward pass needs first.
        handle = push_tensor(buffer, buffer, name, Average, bucket.index())
        self._open.append((name, handle))
        future = _the_completer().add(handle, buffer)
        if bucket.is_last():
            self._forget_former()
        return future

    def _finish(self):
        """At the end of the backward pass: waits for the sums, and raises what went wrong."""
        handles, self._open, self._queued = self._open, [], False
        if self._error is not None:
            raise self._error
        for _, handle in handles:
            handle.wait()

    def _tensor_name(self, bucket):
        buffer, parameters = bucket.buffer(), bucket.parameters()
        identity = (buffer.dtype, buffer.numel()) + tuple(id(p) for p in parameters)
        name = self._known.get(identity)
        if name is None:
            digest = hashlib.sha256(str(buffer.dtype).encode())
            for p in parameters:
                digest.update(("%s %s;" % (self._names.get(id(p), ""), tuple(p.shape))).encode())
            # Without names, the place in the pass tells equal buckets apart.
            index = "" if self._names else "/%d" % bucket.index()
            name = self._known[identity] = self._prefix + digest.hexdigest()[:32] + index
        return name

    def _forget_former(self):
        current = {name for name, _ in self._open}
        for name in self._declared - current:
            try:
                _core.undeclare(name)
            except _errors.Error as error:
                if error.code != _errors.STATE:
                    raise
                current.add(name)  # still pending: next time
        self._declared = current


_default_state = HookState()


def ddp_comm_hook(state, bucket):
    """For model.register_comm_hook(state, addend.torch.ddp_comm_hook): averages by Addend.

    `state` is a HookState, or None for a process with one model. DDP needs a torch process group for
    its own construction; torch.distributed.init_process_group("gloo") will do. When the job fails,
    backward() raises its error.
    """
    return (_default_state if state is None else state).push(bucket)
