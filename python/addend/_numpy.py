"""Push-pull of NumPy arrays."""

import weakref

import numpy

from . import _core, _errors
from ._core import Average, Handle, Pin

_BARRIER = "addend.barrier"
_BROADCAST = "addend.broadcast/"


class _SharedMemory:
    """Lends an address to NumPy; the arrays made of it keep it, and it keeps the mapping."""

    def __init__(self, tensor, address, dtype, read_only):
        self._pin = Pin(tensor)
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": dtype.str,
            "data": (address, read_only),
        }


def _array_at(tensor, address, dtype, read_only):
    array = numpy.asarray(_SharedMemory(tensor, address, dtype, read_only))
    # An extension's dtype (bfloat16) has no type string of its own.
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
    # NumPy's own bfloat16 is an extension type (ml_dtypes) that is known by its name.
    code = _core.DTYPE_CODES.get(dtype.name)
    if code is None:
        raise TypeError(
            "addend cannot sum dtype %s; it sums float32, float64, float16, int32, int64, and "
            'uint16 as bfloat16 with dtype="bfloat16"' % dtype
        )
    return code


def _native(array):
    """C-contiguous and in the machine's byte order; the array itself where it already is."""
    array = numpy.asarray(array)
    return numpy.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _check_op(op):
    if not isinstance(op, _core.Op) or op == _core.BROADCAST:
        raise TypeError("op must be addend.Sum, Average, Min, Max or Accumulate, not %r" % (op,))
    return int(op)


class ArrayHandle(Handle):
    """A push-pull of an array: see push_pull_async."""

    def __init__(self, tensor, array, priority):
        self._dtype = array.dtype
        self._result = None
        in_place = array.ctypes.data == tensor.address and tensor.bytes > 0
        if in_place:
            _settle(tensor)
        else:
            # Memory of our own, so that later rounds do not matter to this result.
            self._result = numpy.empty(tensor.shape, array.dtype)
        target = None if in_place else self._result.ctypes.data
        super().__init__(tensor, array.ctypes.data, target, priority, (array, self._result))
        if in_place:
            tensor.last = weakref.ref(self)

    def view(self):
        return _array_at(self.tensor, self.result_address(), self._dtype, read_only=True)

    def settle(self):
        """Takes the result into memory of its own."""
        if self._result is None:
            self._result = self.view().copy()
        return self._result

    def result(self, copy, timeout):
        self.wait(timeout)
        if copy:
            return self.settle()
        return self.view()


def _settle(tensor):
    """Before a tensor made by empty() is pushed again, its last result must be out of the way."""
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


def declare(name, shape, dtype, op=Average):
    """Declares a tensor ahead of its first push, which else does it. All ranks must agree."""
    _declare(name, shape, dtype, op)


def _declare(name, shape, dtype, op):
    shape = (shape,) if isinstance(shape, (int, numpy.integer)) else tuple(int(s) for s in shape)
    if str(dtype) == "bfloat16":
        numpy_dtype = numpy.dtype(numpy.uint16)
        code = _core.DTYPE_CODES["bfloat16"]
    else:
        numpy_dtype = numpy.dtype(dtype)
        code = _dtype_code(numpy_dtype, None)
    return _core.declare(name, tuple(shape), code, _check_op(op)), numpy_dtype


def empty(shape, dtype, name, op=Average):
    """An array in the memory that is sent from: pushing it under this name makes no copy.

    Not to be written between a push and its result. With synchronize(handle, copy=False) the result
    is not copied either. The array stays readable after shutdown(), but belongs to no tensor then; a
    forked child must not touch it.
    """
    tensor, numpy_dtype = _declare(name, shape, dtype, op)
    return _array_at(tensor, tensor.address, numpy_dtype, read_only=False)


def push_pull_async(array, name, op=Average, priority=0, dtype=None):
    """Starts one round of the tensor `name` and returns a handle at once.

    Every rank of the job contributes an array of the same shape and dtype, in any order of the
    names. Larger priorities go first. The array must not change until the handle is done. A further
    push of the same name waits until this one has ended. dtype="bfloat16" sums an array of uint16 as
    such.
    """
    array = _native(array)
    code = _dtype_code(array.dtype, dtype)
    tensor = _core.declare(name, array.shape, code, _check_op(op))
    return ArrayHandle(tensor, array, priority)


def synchronize(handle, copy=True, timeout=None):
    """Waits for a handle and returns its result, or raises the reason why there is none.

    copy=False returns a read-only view of the agent's memory, valid until the next push of the same
    name. `timeout` is in seconds; when it passes, WaitTimeoutError is raised and the operation goes
    on.
    """
    return handle.result(copy, timeout)


def poll(handle):
    """True when the operation has ended, well or not."""
    return handle.done()


def push_pull(array, name, op=Average, dtype=None):
    """Sums (or averages, ...) `array` over all ranks; returns a new array."""
    return synchronize(push_pull_async(array, name, op, 0, dtype))


def _as_words(array):
    """Any array's bytes as int32, because a broadcast looks at no values."""
    data = numpy.frombuffer(array.tobytes(), numpy.uint8)
    padded = numpy.zeros(-(-data.size // 4) * 4, numpy.uint8)
    padded[: data.size] = data
    return padded.view(numpy.int32)


def broadcast(array, root_rank, name):
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


def barrier():
    """Returns when every rank of the job has called it."""
    push_pull(numpy.zeros(1, numpy.int32), _BARRIER, _core.Sum)
