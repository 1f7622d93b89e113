"""PyTorch tensors as contiguous host memory for the C ABI."""

import torch

from .. import _core

CODES = {
    torch.float32: _core.DTYPE_CODES["float32"],
    torch.float64: _core.DTYPE_CODES["float64"],
    torch.float16: _core.DTYPE_CODES["float16"],
    torch.bfloat16: _core.DTYPE_CODES["bfloat16"],
    torch.int32: _core.DTYPE_CODES["int32"],
    torch.int64: _core.DTYPE_CODES["int64"],
}
# Summed as int32, then narrowed: the bits are those of a sum in the narrow type.
WIDENED = (torch.uint8, torch.int8, torch.int16, torch.bool)


def check_tensor(tensor):
    if not torch.is_tensor(tensor):
        raise TypeError("addend.torch takes tensors, not %s" % type(tensor).__name__)
    if tensor.layout != torch.strided:
        raise TypeError(
            "addend.torch takes dense tensors, but this one is %s; to_dense() makes one of it"
            % tensor.layout
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(
            "addend.torch sums tensors on the CPU and on CUDA devices, but this one is on %s"
            % tensor.device
        )


def wire_dtype(tensor):
    """The dtype in which a tensor is summed; a TypeError gives the reason why it cannot be summed."""
    check_tensor(tensor)
    if tensor.dtype in CODES:
        return tensor.dtype
    if tensor.dtype in WIDENED:
        return torch.int32
    raise TypeError(
        "addend cannot sum %s; it sums float32, float64, float16, bfloat16, bool and integers of 8, "
        "16, 32 and 64 bits" % tensor.dtype
    )


def scaled(tensor, factor):
    """tensor * factor in the tensor's own dtype, of 16 bits in float32 and rounded once; integers are
    scaled in float64, rounded towards zero.
    """
    if factor == 1.0:
        return tensor
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return (tensor.float() * factor).to(tensor.dtype)
    if tensor.is_floating_point():
        return tensor * factor
    return (tensor.double() * factor).to(tensor.dtype)


def on_host(tensor, dtype):
    """Contiguous values in host memory, pinned for a CUDA tensor; the tensor's own memory if suitable."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        # A tensor with the lazy conjugate or negative bit has other values in memory.
        return tensor.to(dtype).contiguous().resolve_conj().resolve_neg()
    host = torch.empty(tensor.shape, dtype=dtype, pin_memory=True)
    return host.copy_(tensor)  # waits for the tensor's stream


def can_receive(tensor, dtype):
    """True when a result of this dtype may be written to the tensor's own memory."""
    plain = tensor.device.type == "cpu" and not tensor.is_neg() and not tensor.is_conj()
    return plain and tensor.dtype == dtype and tensor.is_contiguous()


def check_op(op):
    if not isinstance(op, _core.Op) or op == _core.BROADCAST:
        raise TypeError("op must be addend.Sum, Average, Min, Max or Accumulate, not %r" % (op,))
    return int(op)


def dtype_code(tensor):
    return CODES[wire_dtype(tensor)]


def declare_tensor(tensor, name, op, participants=None, wire=None):
    """Declares a tensor, as its first push would; a push waits until all ranks have declared its tensor."""
    shape = tuple(tensor.shape)
    return _core.declare(name, shape, dtype_code(tensor), check_op(op), participants, wire)


def push_tensor(source, target, name, op, priority, participants=None, wire=None):
    """Starts a round of contiguous host memory. `source` None: adds nothing. `target` may be `source`.

    `participants`: the ranks that take part, in a tuple; None: all ranks. `wire`: the type in which
    float32 elements travel; None: the job's.
    """
    declared = declare_tensor(target, name, op, participants, wire)
    address = None if source is None else source.data_ptr()
    return _core.Handle(declared, address, target.data_ptr(), priority, (source, target))
