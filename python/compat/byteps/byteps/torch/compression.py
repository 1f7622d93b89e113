"""byteps.torch.compression, by Addend."""

from addend.torch.compression import Compression
from addend.torch.compression.cast import FP16Compressor, NoneCompressor

__all__ = ["Compression", "FP16Compressor", "NoneCompressor"]
