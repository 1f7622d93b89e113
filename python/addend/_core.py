"""The process's context, declared tensors and handles, for any kind of array.

All functions here may be called from any thread. Arrays are plain addresses at this level; a Handle
keeps its arrays alive.
"""

from __future__ import annotations

import collections
import ctypes
import multiprocessing
import multiprocessing.util
import os
import threading
from typing import Any, Callable, Optional, Tuple

from . import _autostart, _errors
from ._errors import make_error
from ._library import Options, Statistics, lib

# addend_op
SUM, AVERAGE, MIN, MAX, BROADCAST, ACCUMULATE = range(6)
# addend_dtype
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
DTYPE_CODES = {name: code for code, name in enumerate(DTYPES)}
DTYPE_BYTES = (4, 8, 2, 2, 4, 8)

# A wait is cut into slices of this length, so that Ctrl-C is handled.
_SLICE_S = 0.25


class Op(int):
    """How contributions are combined: addend.Sum, Average, Min, Max, or asynchronously Accumulate."""

    _name: str

    def __new__(cls, value: int, name: str) -> Op:
        op = super().__new__(cls, value)
        op._name = name
        return op

    def __repr__(self) -> str:
        return "addend." + self._name


Sum = Op(SUM, "Sum")
Average = Op(AVERAGE, "Average")
Min = Op(MIN, "Min")
Max = Op(MAX, "Max")
Accumulate = Op(ACCUMULATE, "Accumulate")
Broadcast = Op(BROADCAST, "Broadcast")  # internal: see broadcast()


def check(code: int) -> None:
    """Raises an error with the message of this thread's last failure unless the code is OK."""
    if code != _errors.OK:
        raise make_error(code, lib.addend_last_error().decode("utf-8", "replace"))


class _State:
    """This process's context, if it has one."""

    def __init__(self):
        self.lock = threading.Lock()  # held briefly, never during a blocking call
        self.context = None
        self.socket = None
        self.tensors = {}  # name -> Tensor, so that a push needs no declaration
        self.leaves_in: int | None = None  # the process that leaves the job at its end


_state = _State()


def _forget_lock():
    # A child of fork() must not wait for a lock that another thread of its parent held. The context
    # stays set: libaddend.so knows that the context belongs to the parent, and every call returns
    # an error.
    _state.lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


def _init_in_thread(options, context):
    """Runs addend_init, which blocks in C, in its own thread, so that this thread can handle Ctrl-C."""
    outcome = []

    def run():
        code = lib.addend_init(ctypes.byref(options), ctypes.byref(context))
        message = "" if code == _errors.OK else lib.addend_last_error().decode("utf-8", "replace")
        outcome.append((code, message))

    thread = threading.Thread(target=run, name="addend-init", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SLICE_S)
    code, message = outcome[0]
    if code != _errors.OK:
        raise make_error(code, message)


def init(
    socket: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    size: int | None = None,
    local_rank: int | None = None,
    local_size: int | None = None,
    job: str | None = None,
    connect_timeout: float | None = None,
) -> None:
    """Joins the job through this node's agent and waits until every rank has joined.

    Arguments that are None come from the environment: ADDEND_SOCKET, RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE (as torchrun sets them), ADDEND_JOB, ADDEND_CONNECT_TIMEOUT (seconds). Where no
    agent is there, named or expected, and all ranks are on this machine, local rank 0 starts a
    scheduler and an agent (ADDEND_AUTOSTART=0 forbids it). A second call in a process that has
    already joined does nothing.
    """
    if socket is not None:
        socket = os.fspath(socket)
    with _state.lock:
        if _state.context is not None and lib.addend_rank(_state.context) >= 0:
            if socket is not None and socket != _state.socket:
                raise make_error(
                    _errors.STATE,
                    "this process has joined through %s already; call addend.shutdown() before "
                    "joining through %s" % (_state.socket or "ADDEND_SOCKET", socket),
                )
            return
    started = None
    if socket is None and job is None:
        started = socket = _autostart.socket_of_launcher(size, local_rank, local_size)
    options = Options(
        struct_size=ctypes.sizeof(Options),
        socket=None if socket is None else os.fsencode(socket),
        rank=-1 if rank is None else rank,
        size=-1 if size is None else size,
        local_rank=-1 if local_rank is None else local_rank,
        local_size=-1 if local_size is None else local_size,
        job=None if job is None else job.encode(),
        connect_timeout_s=0 if connect_timeout is None else connect_timeout,
    )
    context = ctypes.c_void_p()
    _init_in_thread(options, context)
    if started is not None:
        _autostart.hold(os.path.dirname(started))
    _leave_with_a_child()
    with _state.lock:
        _state.context = context.value
        _state.socket = socket
        _state.tensors = {}


def _leave_with_a_child() -> None:
    """Makes a process of multiprocessing leave the job at its end, where nothing of atexit runs."""
    if multiprocessing.parent_process() is not None and _state.leaves_in != os.getpid():
        _state.leaves_in = os.getpid()
        multiprocessing.util.Finalize(None, shutdown, exitpriority=0)


def shutdown() -> None:
    """Leaves the job cleanly. To the other ranks, a process that ends without this call has died.

    Drops pending operations. Does nothing without an earlier init(). Rounds to which this rank has
    contributed complete; other ranks that wait for further contributions of this rank get a
    PeerLostError.
    """
    with _state.lock:
        context, _state.context = _state.context, None
        _state.tensors = {}
    if context is not None:
        lib.addend_shutdown(context)
        _release_dropped()


def is_initialized() -> bool:
    """True between init() and shutdown(), in the process that called init()."""
    context = _state.context
    return context is not None and lib.addend_rank(context) >= 0


def context() -> int:
    """Returns the context's pointer; raises an error if this process is in no job."""
    value = _state.context
    if value is None:
        raise make_error(
            _errors.STATE, "this process is in no job; call addend.init() first (and once again "
            "after addend.shutdown())"
        )
    return value


def joined() -> int | None:
    """The context's pointer, or None if this process is in no job."""
    return _state.context


def place(function: Callable[[int], int]) -> int:
    value = function(context())
    if value < 0:
        raise make_error(
            _errors.STATE,
            "this process was forked after addend.init(), and the job knows only its parent; call "
            "addend.init() in the process that trains",
        )
    return value


def statistics() -> dict[str, int]:
    """Counters of this process since init(): copied_in_bytes, copied_out_bytes, rounds."""
    values = Statistics()
    lib.addend_get_statistics(context(), ctypes.byref(values))
    return {field[0]: getattr(values, field[0]) for field in Statistics._fields_}


class Pin:
    """Keeps a tensor's memory mapped for the arrays that use it."""

    _pointer: int | None = None

    def __init__(self, tensor: Tensor) -> None:
        pointer = ctypes.c_void_p()
        check(lib.addend_pin_memory(tensor.pointer, ctypes.byref(pointer)))
        self._pointer = pointer.value

    def __del__(self):
        if self._pointer is not None:
            lib.addend_unpin(self._pointer)


Declared = Tuple[Tuple[int, ...], int, int, Optional[Tuple[int, ...]], Optional[str]]
"""Shape, dtype and op of a tensor, its participants, and the type in which it travels."""


class Tensor:
    """A declared tensor. `address` is the memory from which its contribution is sent."""

    __slots__ = ("pointer", "name", "shape", "declared", "address", "bytes", "last", "refused", "when_refused")

    def __init__(
        self,
        pointer: int,
        name: str,
        declared: Declared,
    ) -> None:
        self.pointer = pointer
        self.name = name
        self.shape = declared[0]
        self.declared = declared
        data = ctypes.c_void_p()
        size = ctypes.c_size_t()
        check(lib.addend_alloc(pointer, ctypes.byref(data), ctypes.byref(size)))
        self.address: Any = data.value
        self.bytes = size.value
        self.last: Any = None  # a weak reference to the last handle whose result was not copied out
        self.refused = False  # ranks disagree about it: it sums nothing any more
        self.when_refused: Callable[[], None] | None = None

    def refuse(self) -> None:
        self.refused = True
        if self.when_refused is not None:
            self.when_refused()


def declare(
    name: str,
    shape: tuple[int, ...],
    dtype: int,
    op: int,
    participants: tuple[int, ...] | None = None,
    wire: str | None = None,
) -> Tensor:
    """Declares a tensor (dtype and op as numbers), or returns the existing declaration.

    `participants`: the ranks that take part, this rank among them; None: all ranks. `wire`: the type
    in which the elements travel, as in addend_declare_wire; None: the job's. A name may come back
    with another shape, on all ranks, when its former operations have ended.
    """
    declared = (shape, dtype, op, participants, wire)
    tensor = _state.tensors.get(name)
    if tensor is not None:
        if tensor.declared == declared and not tensor.refused:
            return tensor
        _make_room(name)
    if not isinstance(name, str):
        raise TypeError("a tensor's name must be a str, not %s" % type(name).__name__)
    encoded = name.encode("utf-8")
    if b"\0" in encoded:
        raise ValueError("the tensor name %r contains a NUL character" % name)
    pointer = ctypes.c_void_p()
    dims = (ctypes.c_int64 * len(shape))(*shape)
    what = (context(), encoded, dims, len(shape), dtype, op)
    ranks = None if participants is None else (ctypes.c_int32 * len(participants))(*participants)
    count = 0 if participants is None else len(participants)
    format = None if wire is None else wire.encode("utf-8")
    check(lib.addend_declare_wire(*what, format, ranks, count, ctypes.byref(pointer)))
    tensor = Tensor(pointer.value or 0, name, declared)
    with _state.lock:
        return _state.tensors.setdefault(name, tensor)


def _make_room(name: str) -> None:
    """Undeclares a tensor whose name comes back."""
    try:
        undeclare(name)
    except _errors.Error as error:
        if error.code != _errors.STATE:
            raise
        raise make_error(
            _errors.STATE,
            'tensor "%s" cannot come back with another shape, dtype or op while an operation under its name is under '
            "way: synchronize its handle first" % name,
        ) from None


def undeclare(name: str) -> None:
    """Undeclares a tensor: its memory is freed, and its name may be declared with another shape.

    Raises an error while a push-pull of the tensor is pending; does nothing if the tensor is not
    declared.
    """
    with _state.lock:
        tensor = _state.tensors.get(name)
    if tensor is None:
        context()
        return
    check(lib.addend_undeclare(tensor.pointer))
    with _state.lock:
        if _state.tensors.get(name) is tensor:
            del _state.tensors[name]


def declared_under(prefix: str) -> list[str]:
    """The names of this process's declared tensors that start with `prefix`."""
    with _state.lock:
        return [name for name in _state.tensors if name.startswith(prefix)]


class Handle:
    """A push-pull under way. Keeps the memory of `keep` alive until the operation has ended."""

    _pointer: int | None = None

    def __init__(
        self,
        tensor: Tensor,
        source: int | None,
        target: int | None,
        priority: int,
        keep: object,
    ) -> None:
        self.tensor = tensor
        self._keep = keep
        pointer = ctypes.c_void_p()
        check(self._start(source, target, priority, ctypes.byref(pointer)))
        self._pointer = pointer.value

    def _start(self, source: int | None, target: int | None, priority: int, pointer: Any) -> int:
        return lib.addend_push_pull(self.tensor.pointer, source, target, priority, pointer)

    def tag(self, number: int) -> None:
        lib.addend_set_tag(self._pointer, number)

    def done(self) -> bool:
        return lib.addend_poll(self._pointer) != 0

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the operation has succeeded; raises if it fails or exceeds the timeout."""
        left = timeout
        while True:
            step = _SLICE_S if left is None else min(_SLICE_S, max(left, 0.0))
            code = lib.addend_wait(self._pointer, step)
            if code != _errors.TIMEOUT:
                break
            if left is not None:
                left -= step
                if left <= 0:
                    raise make_error(
                        code,
                        'tensor "%s" is still under way after %g s; the operation goes on'
                        % (self.tensor.name, round(timeout or 0, 3)),
                    )
        if code == _errors.OK:
            self._keep = None
        elif code == _errors.MISMATCH:
            self.tensor.refuse()
        check(code)

    def result_address(self) -> int:
        return lib.addend_result(self._pointer)

    def __del__(self):
        # Before this returns, libaddend.so copies the parts of the caller's memory that it still
        # needs.
        if self._pointer is not None and lib is not None:  # else the interpreter is at its end
            lib.addend_release(self._pointer)


class DeviceHandle(Handle):
    """A push-pull of GPU memory: takes device addresses and the caller's stream.

    wait() returns when the result is in host memory; call to_stream() after it.
    """

    def __init__(self, tensor, source, target, dtype, stream, priority, keep):
        _release_dropped()
        self._dtype, self._stream = dtype, stream
        self._memory = keep  # kept until the caller has received the result
        super().__init__(tensor, source, target, priority, None)

    def _start(self, source, target, priority, pointer):
        return lib.addend_push_pull_device(
            self.tensor.pointer, source, target, self._dtype, self._stream, priority, pointer
        )

    def to_stream(self, stream):
        """Makes the stream wait until the result is at its target address on the device."""
        check(lib.addend_wait_on_stream(self._pointer, -1.0, stream))
        self._memory = None

    def __del__(self):
        # The device may still write to the memory of a handle whose result was never waited for.
        if self._pointer is not None and self._memory is not None:
            _dropped.append((self._pointer, self._stream, self._memory))
        else:
            super().__del__()


# Rounds dropped before their end. Any thread appends, even while _release_dropped() runs.
_dropped: collections.deque[Any] = collections.deque()


def _release_dropped():
    """Lets go of rounds that nobody waited for, once they have ended."""
    for _ in range(len(_dropped)):
        try:
            pointer, stream, memory = _dropped.popleft()
        except IndexError:
            return  # another thread was faster
        # After an error the device may go on until the job is left.
        ended = lib.addend_poll(pointer) != 0 and (
            lib.addend_wait_on_stream(pointer, 0.0, stream) == _errors.OK or _state.context is None
        )
        if ended:
            lib.addend_release(pointer)
        else:
            _dropped.append((pointer, stream, memory))


def finish_once(handle: Handle) -> None:
    """Waits for the only round of a tensor and forgets it: its memory is worth more than a declaration.

    Also when the round has failed, so that the name may be tried again.
    """
    try:
        handle.wait()
    finally:
        if handle.done():
            undeclare(handle.tensor.name)
