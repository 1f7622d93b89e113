"""Tensors of any dtype, and objects, packed for transfer."""

import io
import pickle

import torch

from ._tensors import on_host

try:
    import cloudpickle
except ImportError:
    cloudpickle = None


def words_of(shape, dtype):
    """The number of int32 words of a packed tensor."""
    return -(-torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size() // 4)


def pack(tensor):
    """A tensor's bytes in host memory as int32, uninterpreted; the last word is padded with zeros."""
    values = on_host(tensor, tensor.dtype).reshape(-1)
    words = torch.zeros(words_of(tensor.shape, tensor.dtype), dtype=torch.int32)
    if values.numel() > 0:
        words.view(torch.uint8)[: values.numel() * values.element_size()] = values.view(torch.uint8)
    return words


def unpack(words, dtype, shape):
    """Restores, in host memory, the tensor that was given to pack()."""
    flat = torch.empty(shape, dtype=dtype).reshape(-1)
    if flat.numel() > 0:
        flat.view(torch.uint8)[:] = words.view(torch.uint8)[: flat.numel() * flat.element_size()]
    return flat.reshape(shape)


# The first byte of a serialised object: by what it was written.
_TORCH, _PICKLE = b"T", b"P"


def dumped(value):
    """An object, serialised as a tensor of bytes; closures need the package cloudpickle."""
    buffer = io.BytesIO(_TORCH)
    buffer.seek(1)
    try:
        torch.save(value, buffer)
        content = buffer.getvalue()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        if cloudpickle is None:
            raise TypeError("%s; with the package cloudpickle closures can be sent too" % error) from error
        # The standard pickle reads it.
        content = _PICKLE + cloudpickle.dumps(value)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def loaded(content, map_location=None):
    written, data = content[:1].numpy().tobytes(), content[1:].numpy().tobytes()
    if written == _PICKLE:
        return pickle.loads(data)
    return torch.load(io.BytesIO(data), map_location, weights_only=False)
