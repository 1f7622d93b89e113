"""Push-pull of NumPy arrays."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Iterable, Union

import numpy

from . import _core, _errors
from ._core import Average, Handle, Op, Pin

_BARRIER = "addend.barrier"
_BROADCAST = "addend.broadcast/"

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Array = NDArray[Any]
    Shape = Union[int, Iterable[int]]


class _SharedMemory:
    """Exposes an address to NumPy. Arrays keep this object alive, and the object keeps the mapping alive."""

    def __init__(self, tensor, address, dtype, read_only):
        self._pin = Pin(tensor)
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": dtype.str,
            "data": (address, read_only),
        }


def _array_at(
    tensor: _core.Tensor,
    address: int,
    dtype: numpy.dtype[Any],
    read_only: bool,
) -> Array:
    array = numpy.asarray(_SharedMemory(tensor, address, dtype, read_only))
    # An extension's dtype (bfloat16) has no type string.
    return array if array.dtype == dtype else array.view(dtype)


def _dtype_code(dtype, wanted):
    """The code of an array's dtype; `wanted` is the caller's dtype= or None."""
    if wanted is not None and str(wanted) == "bfloat16":
        if dtype != numpy.uint16:
            raise TypeError(
                'dtype="bfloat16" needs an array of uint16 (the upper halves of float32), not %s'
                % dtype
            )
        return _core.DTYPE_CODES["bfloat16"]
    if wanted is not None and numpy.dtype(wanted) != dtype:
        raise TypeError("the array has dtype %s, not %s" % (dtype, numpy.dtype(wanted)))
    # NumPy's bfloat16 is an extension type (ml_dtypes), recognised by its name.
    code = _core.DTYPE_CODES.get(dtype.name)
    if code is None:
        raise TypeError(
            "addend cannot sum dtype %s; it sums float32, float64, float16, int32, int64, and "
            'uint16 as bfloat16 with dtype="bfloat16"' % dtype
        )
    return code


def _native(array: ArrayLike) -> Array:
    """The array in C order and the machine's byte order; `array` itself if it already is."""
    array = numpy.asarray(array)
    return numpy.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _check_op(op: object) -> int:
    if not isinstance(op, _core.Op) or op == _core.BROADCAST:
        raise TypeError("op must be addend.Sum, Average, Min, Max or Accumulate, not %r" % (op,))
    return int(op)


class ArrayHandle(Handle):
    """A push-pull of an array: see push_pull_async."""

    def __init__(self, tensor: _core.Tensor, array: Array, priority: int) -> None:
        self._dtype = array.dtype
        self._result: Array | None = None
        in_place = array.ctypes.data == tensor.address and tensor.bytes > 0
        if in_place:
            _settle(tensor)
        else:
            # The handle's own memory, which later rounds do not overwrite.
            self._result = numpy.empty(tensor.shape, array.dtype)
        target = None if self._result is None else self._result.ctypes.data
        super().__init__(tensor, array.ctypes.data, target, priority, (array, self._result))
        if in_place:
            tensor.last = weakref.ref(self)

    def view(self) -> Array:
        return _array_at(self.tensor, self.result_address(), self._dtype, read_only=True)

    def settle(self) -> Array:
        """Copies the result into the handle's own memory."""
        if self._result is None:
            self._result = self.view().copy()
        return self._result

    def result(self, copy: bool, timeout: float | None) -> Array:
        self.wait(timeout)
        if copy:
            return self.settle()
        return self.view()


def _settle(tensor):
    """Saves the last result of a tensor made by empty() before the tensor is pushed again."""
    last = tensor.last() if tensor.last is not None else None
    if last is None:
        return
    if not last.done():
        raise _errors.make_error(
            _errors.STATE,
            'the array of addend.empty() named "%s" is still being summed; synchronize its handle '
            "before pushing it again" % tensor.name,
        )
    try:
        last.wait()
    except _errors.Error:
        return  # a failed round has no result to keep
    last.settle()


def declare(
    name: str,
    shape: Shape,
    dtype: DTypeLike,
    op: Op = Average,
    participants: Iterable[int] | None = None,
    wire: str | None = None,
) -> None:
    """Declares a tensor ahead of its first push, which declares it otherwise. All ranks must agree.

    `participants` and `wire`: see push_pull_async().
    """
    _declare(name, shape, dtype, op, participants, wire)


def _some(participants: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if participants is None else tuple(sorted({int(rank) for rank in participants}))


def _declare(
    name: str,
    shape: Shape,
    dtype: DTypeLike,
    op: Op,
    participants: Iterable[int] | None,
    wire: str | None = None,
) -> tuple[_core.Tensor, numpy.dtype[Any]]:
    shape = (shape,) if isinstance(shape, (int, numpy.integer)) else tuple(int(s) for s in shape)
    if str(dtype) == "bfloat16":
        numpy_dtype: numpy.dtype[Any] = numpy.dtype(numpy.uint16)
        code = _core.DTYPE_CODES["bfloat16"]
    else:
        numpy_dtype = numpy.dtype(dtype)
        code = _dtype_code(numpy_dtype, None)
    tensor = _core.declare(name, tuple(shape), code, _check_op(op), _some(participants), wire)
    return tensor, numpy_dtype


def empty(
    shape: Shape,
    dtype: DTypeLike,
    name: str,
    op: Op = Average,
    participants: Iterable[int] | None = None,
    wire: str | None = None,
) -> Array:
    """An array in the memory that is sent: a push under this name makes no copy.

    Do not write to it between a push and its result. With synchronize(handle, copy=False) the
    result is not copied either. The array stays readable after shutdown(), but then belongs to no
    tensor; a forked child must not touch it.
    """
    tensor, numpy_dtype = _declare(name, shape, dtype, op, participants, wire)
    return _array_at(tensor, tensor.address, numpy_dtype, read_only=False)


def push_pull_async(
    array: ArrayLike,
    name: str,
    op: Op = Average,
    priority: int = 0,
    dtype: DTypeLike = None,
    participants: Iterable[int] | None = None,
    wire: str | None = None,
) -> ArrayHandle:
    """Starts one round of the tensor `name` and returns a handle at once.

    Every rank of the job contributes an array of the same shape and dtype; ranks may push names in
    any order. Larger priorities go first. The array must not change until the handle is done. A
    further push of the same name waits until this round has ended. dtype="bfloat16" sums an array
    of uint16 as bfloat16.

    `participants`: only these ranks take part, this rank among them, and op Average divides by their
    number. All of them name the same ranks, in any order; None: all ranks of the job.

    `wire`: the type in which a sum or average of float32 travels, "bf16", "fp16" or "int8", each
    perhaps with " stochastic" behind it, or "same": each node's contribution is rounded to it, and
    so is the result, with the same bits on all ranks. None: the job's (--wire-dtype).
    """
    array = _native(array)
    code = _dtype_code(array.dtype, dtype)
    tensor = _core.declare(name, array.shape, code, _check_op(op), _some(participants), wire)
    return ArrayHandle(tensor, array, priority)


def synchronize(handle: ArrayHandle, copy: bool = True, timeout: float | None = None) -> Array:
    """Waits for a handle and returns its result, or raises the operation's error.

    copy=False returns a read-only view of the agent's memory, valid until the next push of the same
    name. `timeout` is in seconds; when it passes, WaitTimeoutError is raised and the operation
    continues.
    """
    return handle.result(copy, timeout)


def poll(handle: ArrayHandle) -> bool:
    """True when the operation has ended, in success or failure."""
    return handle.done()


def push_pull(
    array: ArrayLike,
    name: str,
    op: Op = Average,
    dtype: DTypeLike = None,
    participants: Iterable[int] | None = None,
    wire: str | None = None,
) -> Array:
    """Sums (or averages, ...) `array` over all ranks, or the participants; returns a new array."""
    return synchronize(push_pull_async(array, name, op, 0, dtype, participants, wire))


def _as_words(array):
    """Any array's bytes as int32; a broadcast does not interpret values."""
    data = numpy.frombuffer(array.tobytes(), numpy.uint8)
    padded = numpy.zeros(-(-data.size // 4) * 4, numpy.uint8)
    padded[: data.size] = data
    return padded.view(numpy.int32)


def broadcast(array: ArrayLike, root_rank: int, name: str) -> Array:
    """Returns the root's array on every rank. Shape and dtype must be the same on all of them."""
    array = _native(array)
    if array.dtype.hasobject:
        raise TypeError("an array of dtype %s cannot be broadcast" % array.dtype)
    if not 0 <= root_rank < _core.place(_core.lib.addend_size):
        raise ValueError("root_rank %d is no rank of this job" % root_rank)
    words = _as_words(array)
    is_root = _core.place(_core.lib.addend_rank) == root_rank
    tensor = _core.declare(
        _BROADCAST + name, words.shape, _core.DTYPE_CODES["int32"], _core.BROADCAST
    )
    result = numpy.empty_like(words)
    source = words.ctypes.data if is_root else None
    _core.finish_once(Handle(tensor, source, result.ctypes.data, 0, (words, result)))
    out = numpy.frombuffer(result.tobytes()[: array.nbytes], array.dtype)
    return out.reshape(array.shape).copy()


def barrier() -> None:
    """Returns when every rank of the job has called it."""
    push_pull(numpy.zeros(1, numpy.int32), _BARRIER, _core.Sum)
