"""PyTorch tensors as the addresses that the C ABI takes."""

import torch

from . import _core

_DTYPES = {
    torch.float32: _core.DTYPE_CODES["float32"],
    torch.float64: _core.DTYPE_CODES["float64"],
    torch.float16: _core.DTYPE_CODES["float16"],
    torch.bfloat16: _core.DTYPE_CODES["bfloat16"],
    torch.int32: _core.DTYPE_CODES["int32"],
    torch.int64: _core.DTYPE_CODES["int64"],
}


def check_tensor(tensor):
    if not torch.is_tensor(tensor):
        raise TypeError("addend.torch takes tensors, not %s" % type(tensor).__name__)
    if tensor.device.type != "cpu":
        raise TypeError(
            "addend.torch sums tensors on the CPU, but this one is on %s; move the model to the CPU, "
            "support for GPUs comes later" % tensor.device
        )
    if tensor.layout != torch.strided:
        raise TypeError("addend.torch takes dense tensors, but this one is %s" % tensor.layout)


def dtype_code(tensor):
    """The code of a tensor that can be summed; a TypeError says why another cannot."""
    check_tensor(tensor)
    code = _DTYPES.get(tensor.dtype)
    if code is None:
        raise TypeError(
            "addend cannot sum %s; it sums float32, float64, float16, bfloat16, int32 and int64"
            % tensor.dtype
        )
    return code


def push_tensor(source, target, name, op, priority):
    """Pushes contiguous memory; `target` may be `source`."""
    if not isinstance(op, _core.Op) or op == _core.BROADCAST:
        raise TypeError("op must be addend.Sum, Average, Min or Max, not %r" % (op,))
    declared = _core.declare(name, tuple(source.shape), dtype_code(source), int(op))
    return _core.Handle(
        declared, source.data_ptr(), target.data_ptr(), priority, (source, target)
    )
