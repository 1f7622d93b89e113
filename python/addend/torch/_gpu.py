"""Tensors on a GPU: rounds read them from, and write results to, device memory.

No function here waits for the GPU. A round records the caller's stream when it starts, and the
stream that is current when the result is requested waits for the result.
"""

import contextlib
import threading

import torch

from .. import _core
from ._tensors import declare_tensor, dtype_code


def on_gpu(tensor):
    return tensor.device.type == "cuda"


def stream_of(tensor):
    """The number of the current stream of the tensor's device, and a function that keeps memory for it."""
    stream = torch.cuda.current_stream(tensor.device)
    return stream.cuda_stream, lambda kept: kept.record_stream(stream)


def start(contribution, room, name, op, priority, wire=None):
    """Starts a round of contiguous device memory; call the handle's to_stream() after its wait()."""
    _check_device(room.device)
    declared = declare_tensor(room, name, op, wire=wire)
    stream, keep = stream_of(room)
    keep(room)  # this stream waits for a handle that is dropped
    address = None if contribution is None else contribution.data_ptr()
    with torch.cuda.device_of(room):  # the job's first round opens the current device
        return _core.DeviceHandle(
            declared, address, room.data_ptr(), dtype_code(room), stream, priority, (contribution, room)
        )


_own = (None, None)  # a context, and the device of its first tensor


def _check_device(device):
    global _own
    context = _core.context()
    if _own[0] != context:
        _own = (context, device)
    elif _own[1] != device:
        raise ValueError(
            "this tensor is on %s, but the first one of this rank was on %s: a rank has one GPU; move "
            "the tensor there" % (device, _own[1])
        )


def receive(handle, room, target):
    """Makes the current stream wait for a round that has ended, and keeps its memory until then.

    `target` is the memory that receives the result on this stream.
    """
    stream, keep = stream_of(room)
    handle.to_stream(stream)
    keep(room)
    keep(target)


def where_made(result):
    """The current stream of a result's device, for follow(); None for a result in host memory."""
    tensors = result if isinstance(result, (list, tuple)) else (result,)
    for one in tensors:
        if torch.is_tensor(one) and one.is_cuda:
            return torch.cuda.current_stream(one.device)
    return None


def follow(stream):
    """Makes the current stream wait for the work on `stream`, which may be None."""
    if stream is None:
        return
    current = torch.cuda.current_stream(stream.device)
    if current != stream:
        current.wait_stream(stream)


_side = {}  # device -> stream
_side_lock = threading.Lock()


def beside(device, after_current=False):
    """A context for work beside the streams on which the model computes.

    All threads share a single side stream of a device, so that memory may be allocated in one
    thread and freed in another. `after_current`: the side stream waits for the current stream's
    present work.
    """
    if device is None or device.type != "cuda":
        return contextlib.nullcontext()
    with _side_lock:
        if device not in _side:
            _side[device] = torch.cuda.Stream(device)
        side = _side[device]
    if after_current:
        side.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(side)
