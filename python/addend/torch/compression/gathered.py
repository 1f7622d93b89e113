"""The base of schemes by which every rank sends something else: all messages go to all ranks."""

import torch

from .._gather import gather_async
from .._handle import Handle
from .error_feedback import ErrorFeedback
from .scheme import Scheme


class Gathered(Scheme):
    """Every rank adds up the messages of all ranks, in rank order, so that all have the same bits.

    A rank receives size() messages: worth it where a message is smaller than a bucket by much more
    than that. A subclass says what a message is. With error_feedback, what a message leaves out is
    added to the next step's gradients.
    """

    def __init__(self, error_feedback=True):
        self._feedback = ErrorFeedback(error_feedback)

    def encode(self, values, bucket):
        """The message for `values` (flat, float32 or float64): bytes, as many for equal buckets."""
        raise NotImplementedError

    def decode(self, message, values, bucket):
        """What a message says, as a tensor like `values`."""
        raise NotImplementedError

    def start(self, bucket):
        values = self._feedback.corrected(bucket)
        message = self.encode(values, bucket)
        # The last byte says that there is a message: of a node that the job has lost
        # (--on-node-loss=shrink) zeros arrive, and the average is over those present.
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

    def state_dict(self):
        return {"residuals": self._feedback.state_dict()}

    def load_state_dict(self, state):
        self._feedback.load_state_dict(state["residuals"])


def as_bytes(*tensors):
    """The bytes of contiguous tensors, one after the other."""
    return torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors])


def from_bytes(message, start, count, dtype):
    """`count` values of dtype that begin at byte `start`, and the byte behind them."""
    stop = start + count * torch.empty(0, dtype=dtype).element_size()
    return message[start:stop].clone().view(dtype), stop
