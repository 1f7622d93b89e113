"""What can be done to gradients on their way: casts, and schemes that send less than all of them."""

from .cast import BF16Compressor, FP16Compressor, NoneCompressor
from .scheme import Bucket, Part, Scheme

__all__ = ["Bucket", "Compression", "Part", "Scheme"]


class Compression:
    """Horovod's names: Compression.none, Compression.fp16, and Compression.bf16 beside them."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
