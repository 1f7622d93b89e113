"""The base of schemes in which every rank sends a different message: all messages go to all ranks."""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch import Tensor

from .._gather import gather_async
from .._handle import Handle
from .error_feedback import ErrorFeedback
from .scheme import Bucket, Scheme


class Gathered(Scheme):
    """Every rank adds up the messages of all ranks, in rank order, so that all have the same bits.

    A rank receives size() messages, so a message must be smaller than a bucket by much more than
    that factor to be worthwhile. A subclass defines the message. With error_feedback, the values
    that a message leaves out are added to the next step's gradients.
    """

    def __init__(self, error_feedback: bool = True) -> None:
        self._feedback = ErrorFeedback(error_feedback)

    def encode(self, values: Tensor, bucket: Bucket) -> Tensor:
        """The message for `values` (flat, float32 or float64): bytes, equally many for equal buckets."""
        raise NotImplementedError

    def decode(self, message: Tensor, values: Tensor, bucket: Bucket) -> Tensor:
        """The values in a message, as a tensor like `values`."""
        raise NotImplementedError

    def start(self, bucket: Bucket) -> Handle[Tensor]:
        values = self._feedback.corrected(bucket)
        message = self.encode(values, bucket)
        # The last byte marks a message: a node that the job has lost (--on-node-loss=shrink) yields
        # zeros, and the average is over the present nodes.
        sent = torch.cat([message, torch.ones(1, dtype=torch.uint8)])
        gathered = gather_async(sent, bucket.name, bucket.priority)

        def finish():
            messages = [one[:-1] for one in gathered.wait() if one[-1] == 1]
            total = self.decode(messages[0], values, bucket)
            for other in messages[1:]:
                total += self.decode(other, values, bucket)
            bucket.buffer.copy_(total / len(messages))
            self._feedback.keep(bucket, values - self.decode(message, values, bucket))
            return bucket.buffer

        return Handle([gathered], finish)

    def state_dict(self) -> dict[str, Any]:
        return {"residuals": self._feedback.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._feedback.load_state_dict(state["residuals"])


def as_bytes(*tensors):
    """The bytes of contiguous tensors, one after the other."""
    return torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors])


def from_bytes(message, start, count, dtype):
    """`count` values of dtype from byte `start` on, and the index of the byte behind them."""
    stop = start + count * torch.empty(0, dtype=dtype).element_size()
    return message[start:stop].clone().view(dtype), stop
