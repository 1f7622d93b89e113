"""Tensors of any dtype, and objects, as what can travel."""

import io

import torch

from ._tensors import on_host


def words_of(shape, dtype):
    """How many int32 a packed tensor is."""
    return -(-torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size() // 4)


def pack(tensor):
    """A tensor's bytes in host memory as int32, whatever they mean; the last word is filled up with zeros."""
    values = on_host(tensor, tensor.dtype).reshape(-1)
    words = torch.zeros(words_of(tensor.shape, tensor.dtype), dtype=torch.int32)
    if values.numel() > 0:
        words.view(torch.uint8)[: values.numel() * values.element_size()] = values.view(torch.uint8)
    return words


def unpack(words, dtype, shape):
    """The tensor that pack() was given, in host memory."""
    flat = torch.empty(shape, dtype=dtype).reshape(-1)
    if flat.numel() > 0:
        flat.view(torch.uint8)[:] = words.view(torch.uint8)[: flat.numel() * flat.element_size()]
    return flat.reshape(shape)


def dumped(value):
    """An object as a tensor of bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def loaded(content, map_location=None):
    return torch.load(io.BytesIO(content.numpy().tobytes()), map_location, weights_only=False)
