"""A bit per element: its sign. The scale is one number per parameter, the mean of the absolute values."""

from __future__ import annotations

import torch
from torch import Tensor

from .gathered import Gathered, as_bytes, from_bytes
from .scheme import Bucket

_WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


class OneBit(Gathered):
    """Sends 1/32 of the bytes of float32 from every rank to every rank.

    A parameter with a value that is not finite has a scale that is not finite, and arrives not
    finite.
    """

    def encode(self, values: Tensor, bucket: Bucket) -> Tensor:
        pieces = [values[part.start : part.stop] for part in bucket.parts]
        scales = torch.stack([piece.abs().sum() / max(1, piece.numel()) for piece in pieces])
        bits = torch.zeros(-(-values.numel() // 8) * 8, dtype=torch.uint8)
        bits[: values.numel()] = values >= 0
        packed = (bits.view(-1, 8) * _WEIGHTS).sum(1, dtype=torch.uint8)
        return as_bytes(scales, packed)

    def decode(self, message: Tensor, values: Tensor, bucket: Bucket) -> Tensor:
        scales, begin = from_bytes(message, 0, len(bucket.parts), values.dtype)
        lengths = torch.tensor([part.stop - part.start for part in bucket.parts])
        sizes = torch.repeat_interleave(scales, lengths)
        bits = (message[begin:].unsqueeze(1) & _WEIGHTS).reshape(-1)[: values.numel()]
        return torch.where(bits != 0, sizes, -sizes)
