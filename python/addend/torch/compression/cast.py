"""Half the bytes: gradients travel as float16 or bfloat16. Every sum is still made in float32."""

import torch


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
