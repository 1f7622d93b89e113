"""Compression of gradients: casts, and schemes that send only a part of the gradients."""

from .cast import BF16Compressor, FP16Compressor, NoneCompressor
from .coarse_sparse import CoarseSparse
from .one_bit import OneBit
from .random_k import RandomK
from .scheme import Bucket, Part, Scheme
from .top_k import TopK

__all__ = ["Bucket", "CoarseSparse", "Compression", "OneBit", "Part", "RandomK", "Scheme", "TopK"]


class Compression:
    """Horovod's names: Compression.none and Compression.fp16; Compression.bf16 is an addition."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
