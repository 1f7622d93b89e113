"""Half the bytes: gradients are sent as float16 or bfloat16. Every sum is still computed in float32."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ..._core import Average
from .._handle import Handle
from .._rounds import start_reduce
from .scheme import Bucket, Scheme


class Compressor(Protocol):
    """Horovod's interface of a compressor, of an object or of a class with static methods."""

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]: ...

    def decompress(self, tensor: Tensor, context: Any) -> Tensor: ...


def wire_format_of(compressor: Compressor) -> str | None:
    """The type in which sums of float32 travel, if the compressor has such a type (`wire_format`)."""
    return getattr(compressor, "wire_format", None)


class NoneCompressor:
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and the context from which decompress() restores the original type."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        del context
        return tensor


class Exact(NoneCompressor):
    """Sends tensors unchanged, whatever type the job's tensors travel in (--wire-dtype)."""

    wire_format = "same"


class _CastCompressor:
    wire: _Wire

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        if not tensor.is_floating_point() or tensor.element_size() <= cls.wire.itemsize:
            return tensor, None
        return tensor.to(cls.wire.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        return tensor if context is None else tensor.to(context)


class _Wire:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.itemsize = torch.empty(0, dtype=dtype).element_size()


class FP16Compressor(_CastCompressor):
    """float16: 11 bits of precision, values up to 65504; larger values become infinite."""

    wire = _Wire(torch.float16)


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire = _Wire(torch.bfloat16)


class CastScheme(Scheme):
    """Applies a compressor (an object with Horovod's compress() and decompress()) to whole buckets."""

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor

    def start(self, bucket: Bucket) -> Handle[Tensor]:
        sent, context = self._compressor.compress(bucket.buffer)
        name = bucket.name
        if sent.dtype != bucket.buffer.dtype:
            # A bucket may be cast by one caller and not by another.
            name = "%s/%s" % (name, sent.dtype)
        wire = wire_format_of(self._compressor)
        sending = start_reduce(sent, sent, name, Average, bucket.priority, wire=wire)

        def finish():
            result = self._compressor.decompress(sending.wait(), context)
            if result.data_ptr() != bucket.buffer.data_ptr():
                bucket.buffer.copy_(result)
            return bucket.buffer

        return Handle([sending], finish)


def as_scheme(compression: Compressor | Scheme) -> Scheme:
    """The Scheme itself, or the scheme of a compressor."""
    if isinstance(compression, Scheme):
        return compression
    if hasattr(compression, "compress") and hasattr(compression, "decompress"):
        return CastScheme(compression)
    raise TypeError(
        "compression must be one of addend.torch.Compression, an object with compress() and "
        "decompress(), or a Scheme of addend.torch.compression, not %r" % (compression,)
    )
