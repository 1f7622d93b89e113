"""A byte per element: blocks of 64 elements that are small multiples of a power of two."""

from __future__ import annotations

import torch
from torch import Tensor

from .cast import NoneCompressor
from .scheme import Bucket
from .summed import Summed

BLOCK = 64


def rounded_to_int8(values: Tensor) -> Tensor:
    """Flat float32 values, rounded as `wire="int8"` rounds them (lib/reduce/rounding.h): in blocks of
    64, to multiples of the power of two that lets the largest fit into 7 bits. A block with a value
    that is not finite stays as it is.
    """
    padded = values.new_zeros(-(-values.numel() // BLOCK) * BLOCK)
    padded[: values.numel()] = values
    blocks = padded.view(-1, BLOCK)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    finite = torch.isfinite(largest)
    _, exponent = torch.frexp(torch.where(finite, largest, torch.zeros_like(largest)))
    # The exponent of the largest value, less 6; the unit is a normal number.
    units = torch.ldexp(torch.ones_like(largest), (exponent - 7).clamp(min=-126))
    multiples = torch.round(blocks / units).clamp(-127, 127)
    multiples = multiples + 0.0  # -0.0 becomes 0.0
    return torch.where(finite, multiples * units, blocks).view(-1)[: values.numel()]


class Int8Compressor(NoneCompressor):
    """Each node's gradients and their average are rounded on the way; float32 only. Without error
    feedback: Int8() has it.
    """

    wire_format = "int8"


class Int8(Summed):
    """Rounds to a byte and a 64th per element, and adds the remainders to the next step's gradients.

    With one rank per node, the node's own rounding changes nothing; more ranks are summed in their
    node first, and that sum is rounded once more, without feedback. So is the average.
    """

    wire = "int8"

    def part_of(self, values: Tensor, bucket: Bucket) -> Tensor:
        return rounded_to_int8(values.to(torch.float32)).to(values.dtype)
