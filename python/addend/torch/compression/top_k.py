"""The largest elements of every parameter: the others are zeros, which hardly travel."""

from __future__ import annotations

import torch
from torch import Tensor

from .scheme import Bucket, Part, share_of
from .summed import Summed


def elements_of(k: float, part: Part) -> int:
    """The number of sent elements of a parameter: k, or its share of them, at least one."""
    elements = part.stop - part.start
    return min(elements, int(k) if k >= 1 else share_of(k, elements))


def check_k(k: float) -> None:
    if not (isinstance(k, int) and k >= 1) and not 0 < k < 1:
        raise ValueError(
            "k must be a number of elements, 1 or more, or a share of them between 0 and 1, not %r" % (k,)
        )


class TopK(Summed):
    """`k`: elements of every parameter (an int), or the share of them (a float below 1).

    An element takes its four bytes, and every 64 elements a bitmap of eight. Values that are not
    finite count as the largest.
    """

    def __init__(self, k: float = 0.01, error_feedback: bool = True) -> None:
        check_k(k)
        super().__init__(error_feedback)
        self._k = k

    def part_of(self, values: Tensor, bucket: Bucket) -> Tensor:
        pieces = [
            values[part.start : part.stop].abs().topk(elements_of(self._k, part), sorted=False).indices
            + part.start
            for part in bucket.parts
        ]
        places = torch.cat(pieces)
        sent = torch.zeros_like(values)
        # A value of the gradients' own type, so that nothing is lost beside the choice.
        sent[places] = values[places].to(bucket.buffer.dtype).to(values.dtype)
        return sent
