"""horovod.torch.compression, by Addend."""

from addend.torch.compression import Compression
from addend.torch.compression.cast import BF16Compressor, FP16Compressor, NoneCompressor


class Compressor:
    """The base of a user's compressor: compress(tensor) returns what to send and a context,
    decompress(tensor, context) the tensor.
    """

    @staticmethod
    def compress(tensor):
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        raise NotImplementedError


__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
