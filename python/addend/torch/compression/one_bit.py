"""A bit per element: its sign. The size is one per parameter, the mean of the absolute values."""

import torch

from .gathered import Gathered, as_bytes, from_bytes

_WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


class OneBit(Gathered):
    """1/32 of the bytes of float32 from every rank, to every rank.

    A parameter with a value that is not finite has a mean that is not, and arrives as such.
    """

    def encode(self, values, bucket):
        pieces = [values[part.start : part.stop] for part in bucket.parts]
        scales = torch.stack([piece.abs().sum() / max(1, piece.numel()) for piece in pieces])
        bits = torch.zeros(-(-values.numel() // 8) * 8, dtype=torch.uint8)
        bits[: values.numel()] = values >= 0
        packed = (bits.view(-1, 8) * _WEIGHTS).sum(1, dtype=torch.uint8)
        return as_bytes(scales, packed)

    def decode(self, message, values, bucket):
        scales, begin = from_bytes(message, 0, len(bucket.parts), values.dtype)
        lengths = torch.tensor([part.stop - part.start for part in bucket.parts])
        sizes = torch.repeat_interleave(scales, lengths)
        bits = (message[begin:].unsqueeze(1) & _WEIGHTS).reshape(-1)[: values.numel()]
        return torch.where(bits != 0, sizes, -sizes)
