"""Combinations that servers do not compute: each rank receives all ranks' tensors and combines them, in
the order of the ranks and alike on all ranks. A rank receives as many tensors as there are ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._gather import gather_async
from ._handle import Handle
from ._sets import ProcessSet
from ._tensors import scaled


class Combination:
    """Product or Adasum."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return "addend.torch." + self._name

    def of(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def check(self, tensor: Tensor, ranks: int) -> None:
        """Raises if this many ranks cannot combine such a tensor."""


class _Product(Combination):
    def of(self, parts):
        # Of 16 bits in float32, rounded once.
        wide = [one.float() if one.dtype in (torch.float16, torch.bfloat16) else one for one in parts]
        result = wide[0].clone()
        for one in wide[1:]:
            result *= one
        return result.to(parts[0].dtype)


class _Adasum(Combination):
    """Maleki et al., "Scaling Distributed Training with Adaptive Summation" (MLSys '21), equation 3:
    gradients in the same direction are averaged, orthogonal gradients are added. Neighbours are
    combined first, then pairs of pairs; dot products are made in float64.
    """

    def of(self, parts):
        found = [one.double() for one in parts]
        while len(found) > 1:
            found = [self._pair(a, b) for a, b in zip(found[::2], found[1::2])]
        return found[0].to(parts[0].dtype)

    @staticmethod
    def _pair(a, b):
        dot, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
        left = 1.0 - dot / (2.0 * of_a) if of_a > 0 else 1.0
        right = 1.0 - dot / (2.0 * of_b) if of_b > 0 else 1.0
        return left * a + right * b

    def check(self, tensor, ranks):
        if not tensor.is_floating_point():
            raise TypeError("Adasum combines floating tensors, not %s" % tensor.dtype)
        if ranks & (ranks - 1):
            raise NotImplementedError("Adasum needs a power of two ranks, and here are %d" % ranks)


Product = _Product("Product")
Adasum = _Adasum("Adasum")


def start(
    op: Combination,
    source: Tensor | None,
    target: Tensor,
    name: str,
    priority: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Handle[Any]:
    """As start_reduce() for these operations. `source` None adds nothing: zeros."""
    op.check(target, len(process_set.ranks))
    if source is None:
        source = torch.zeros_like(target)
    gathering = gather_async(scaled(source.detach(), prescale_factor), name, priority, process_set)

    def finish():
        combined = op.of(list(gathering.wait()))
        return target.detach().copy_(scaled(combined, postscale_factor))

    return Handle([gathering], finish)
