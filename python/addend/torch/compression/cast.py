"""Half the bytes: gradients travel as float16 or bfloat16. Every sum is still made in float32."""

import torch

from ..._core import Average
from .._handle import Handle
from .._rounds import start_reduce
from .scheme import Scheme


class NoneCompressor:
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor):
        """What travels, and what decompress() needs to make the original type of it."""
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        del context
        return tensor


class _CastCompressor:
    wire = None

    @classmethod
    def compress(cls, tensor):
        if not tensor.is_floating_point() or tensor.element_size() <= cls.wire.itemsize:
            return tensor, None
        return tensor.to(cls.wire.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor, context):
        return tensor if context is None else tensor.to(context)


class _Wire:
    def __init__(self, dtype):
        self.dtype = dtype
        self.itemsize = torch.empty(0, dtype=dtype).element_size()


class FP16Compressor(_CastCompressor):
    """float16: 11 bits of precision, values up to 65504; larger ones become infinite."""

    wire = _Wire(torch.float16)


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire = _Wire(torch.bfloat16)


class CastScheme(Scheme):
    """A compressor (an object with Horovod's compress() and decompress()) for whole buckets."""

    def __init__(self, compressor):
        self._compressor = compressor

    def start(self, bucket):
        sent, context = self._compressor.compress(bucket.buffer)
        name = bucket.name
        if sent.dtype != bucket.buffer.dtype:
            name = "%s/%s" % (name, sent.dtype)  # a bucket may be cast in one place and not in another
        sending = start_reduce(sent, sent, name, Average, bucket.priority)

        def finish():
            result = self._compressor.decompress(sending.wait(), context)
            if result.data_ptr() != bucket.buffer.data_ptr():
                bucket.buffer.copy_(result)
            return bucket.buffer

        return Handle([sending], finish)


def as_scheme(compression):
    """The scheme that is meant: a Scheme itself, or a compressor's."""
    if isinstance(compression, Scheme):
        return compression
    if hasattr(compression, "compress") and hasattr(compression, "decompress"):
        return CastScheme(compression)
    raise TypeError(
        "compression must be one of addend.torch.Compression, an object with compress() and "
        "decompress(), or a Scheme of addend.torch.compression, not %r" % (compression,)
    )
