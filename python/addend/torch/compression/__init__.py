"""Compression of gradients: casts, and schemes that send only a part of the gradients."""

from .cast import BF16Compressor, FP16Compressor, NoneCompressor
from .coarse_sparse import CoarseSparse
from .int8 import Int8, Int8Compressor
from .one_bit import OneBit
from .random_k import RandomK
from .scheme import Bucket, Part, Scheme
from .top_k import TopK

__all__ = ["Bucket", "CoarseSparse", "Compression", "Int8", "OneBit", "Part", "RandomK", "Scheme", "TopK"]


class Compression:
    """Horovod's names: Compression.none and Compression.fp16; bf16 and int8 are additions."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
