"""The base of schemes in which every rank sends a part of its gradients, and the servers sum the parts.

What is sent is a dense tensor, mostly of zeros or of few different values: Addend's exact encodings
make it short on the network (docs/wire-format.md), whatever part a scheme chooses.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch import Tensor

from ..._core import Average
from .._handle import Handle
from .._rounds import start_reduce
from .error_feedback import ErrorFeedback
from .scheme import Bucket, Scheme


class Summed(Scheme):
    """A subclass defines part_of(). With error_feedback, the values that a rank does not send are
    added to the next step's gradients.

    `wire`: the type in which the parts and the average travel, in float32; "same": as they are.
    """

    wire = "same"

    def __init__(self, error_feedback: bool = True) -> None:
        self._feedback = ErrorFeedback(error_feedback)

    def part_of(self, values: Tensor, bucket: Bucket) -> Tensor:
        """The values to send, in a tensor like `values` (flat, float32 or float64)."""
        raise NotImplementedError

    def start(self, bucket: Bucket) -> Handle[Tensor]:
        values = self._feedback.corrected(bucket)
        part = self.part_of(values, bucket)
        sent = part if self.wire == "same" else part.to(torch.float32)
        sending = start_reduce(
            sent, torch.empty_like(sent), bucket.name, Average, bucket.priority, wire=self.wire
        )

        def finish():
            bucket.buffer.copy_(sending.wait())
            self._feedback.keep(bucket, values - part)
            return bucket.buffer

        return Handle([sending], finish)

    def state_dict(self) -> dict[str, Any]:
        return {"residuals": self._feedback.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._feedback.load_state_dict(state["residuals"])
