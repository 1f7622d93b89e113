"""The largest elements of every parameter, with their indices."""

from __future__ import annotations

import torch
from torch import Tensor

from .gathered import Gathered, as_bytes, from_bytes
from .scheme import Bucket, Part, share_of


def elements_of(k: float, part: Part) -> int:
    """The number of sent elements of a parameter: k, or its share of them, at least one."""
    elements = part.stop - part.start
    return min(elements, int(k) if k >= 1 else share_of(k, elements))


def check_k(k: float) -> None:
    if not (isinstance(k, int) and k >= 1) and not 0 < k < 1:
        raise ValueError(
            "k must be a number of elements, 1 or more, or a share of them between 0 and 1, not %r" % (k,)
        )


class TopK(Gathered):
    """`k`: elements of every parameter (an int), or the share of them (a float below 1).

    An element takes four bytes for its index beside its value. Values that are not finite count as
    the largest.
    """

    def __init__(self, k: float = 0.01, error_feedback: bool = True) -> None:
        check_k(k)
        super().__init__(error_feedback)
        self._k = k

    def encode(self, values: Tensor, bucket: Bucket) -> Tensor:
        pieces = [
            values[part.start : part.stop].abs().topk(elements_of(self._k, part), sorted=False).indices
            + part.start
            for part in bucket.parts
        ]
        places = torch.cat(pieces)
        return as_bytes(places.to(torch.int32), values[places].to(bucket.buffer.dtype))

    def decode(self, message: Tensor, values: Tensor, bucket: Bucket) -> Tensor:
        count = sum(elements_of(self._k, part) for part in bucket.parts)
        places, begin = from_bytes(message, 0, count, torch.int32)
        found, _ = from_bytes(message, begin, count, bucket.buffer.dtype)
        result = torch.zeros_like(values)
        result[places.long()] = found.to(values.dtype)
        return result
