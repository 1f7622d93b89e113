"""GPUs that are emulated on the host (tests/support/emulated_cuda): NumPy arrays stand for their memory.

In a trainer, before addend is imported:

    from tests.support import emulated_gpu
    gpu = emulated_gpu.Gpu(index)              # this process's current device from now on
    result = gpu.push_pull(array, "name", op)  # as addend.push_pull, from the GPU

tests/gpu is for machines with a real GPU.
"""
import ctypes
import os
import pathlib

import numpy as np

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "build" / "tests" / "libaddend_cuda_emulated.so"
# The bus ids of the fixtures in tests/data/topology, in ascending order.
BUS_IDS = {
    "paper-pcie": [f"0000:{bus}:00.0" for bus in ("18", "19", "1a", "1b", "87", "88", "89", "8a")],
    "dgx": [f"0000:{bus}:00.0" for bus in ("03", "04", "43", "44", "83", "84", "c3", "c4")],
    "paper-nvlink": [f"0000:{bus}:00.0" for bus in ("18", "19", "3c", "3d", "87", "88", "b0", "b1")],
}


class Gpu:
    def __init__(self, bus_id):
        os.environ["ADDEND_CUDA_LIBRARY"] = str(LIBRARY)
        os.environ["EMULATED_CUDA_BUS_ID"] = bus_id
        self._cuda = ctypes.CDLL(str(LIBRARY), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._cuda.emulated_cuda_count.restype = ctypes.c_uint64
        self._cuda.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]
        stream = ctypes.c_void_p()
        assert self._cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
        self.stream = stream.value

    def count(self, name):
        """A count since the process began: "synchronisations", "copies", "allocations" or "pinned"."""
        return self._cuda.emulated_cuda_count(name.encode())

    def fail(self):
        """Makes the device fail: every later call returns an error."""
        self._cuda.emulated_cuda_set(b"fail_after_copies", ctypes.c_int64(0))

    def start(self, array, name, op, wire=None, out=None, priority=0):
        """Returns a handle and the result's array; `wire` is the dtype of the transfer. `array` None: this rank adds nothing."""
        from addend import _core
        out = np.empty_like(array) if out is None else out
        dtype = _core.DTYPE_CODES["bfloat16" if out.dtype == np.uint16 else out.dtype.name]
        declared = _core.declare(name, out.shape, dtype if wire is None else _core.DTYPE_CODES[wire], int(op))
        address = None if array is None else array.ctypes.data
        handle = _core.DeviceHandle(declared, address, out.ctypes.data, dtype, self.stream, priority, (array, out))
        return handle, out

    def finish(self, handle, out):
        handle.wait()
        handle.to_stream(self.stream)
        assert self._cuda.cudaStreamSynchronize(self.stream) == 0  # the test's synchronisation
        return out

    def push_pull(self, array, name, op, **options):
        return self.finish(*self.start(array, name, op, **options))
