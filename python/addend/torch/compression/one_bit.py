"""A bit per element: its sign. The scale is one number per parameter, the mean of the absolute values."""

from __future__ import annotations

import torch
from torch import Tensor

from .int8 import rounded_to_int8
from .scheme import Bucket
from .summed import Summed


class OneBit(Summed):
    """Every rank sends 12 bytes for 64 elements, and receives the average in a byte per element.

    A parameter with a value that is not finite has a scale that is not finite, and arrives not
    finite.
    """

    # The average of n ranks' scales has 2^n values: it is rounded, as Int8's is.
    wire = "int8"

    def part_of(self, values: Tensor, bucket: Bucket) -> Tensor:
        pieces = [values[part.start : part.stop] for part in bucket.parts]
        scales = torch.stack([piece.abs().sum() / max(1, piece.numel()) for piece in pieces])
        lengths = torch.tensor([part.stop - part.start for part in bucket.parts])
        sizes = torch.repeat_interleave(scales, lengths)
        signs = torch.where(values >= 0, sizes, -sizes)
        return rounded_to_int8(signs.to(torch.float32)).to(values.dtype)
