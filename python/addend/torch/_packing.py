"""Tensors of any dtype, and objects, packed for transfer."""

import io

import torch

from ._tensors import on_host


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


def dumped(value):
    """An object, serialised as a tensor of bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def loaded(content, map_location=None):
    return torch.load(io.BytesIO(content.numpy().tobytes()), map_location, weights_only=False)
