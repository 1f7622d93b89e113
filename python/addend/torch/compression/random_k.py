"""Elements drawn at random, the same elements on all ranks: they are summed without their indices."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping

import torch
from torch import Tensor

from ..._core import Average
from .._handle import Handle
from .._rounds import start_reduce
from .error_feedback import ErrorFeedback, mark_not_finite
from .exchanges import Exchanges
from .scheme import Bucket, Scheme
from .top_k import check_k, elements_of


class RandomK(Scheme):
    """`k`: elements of every parameter (an int), or the share of them (a float below 1).

    The choice follows from `seed`, the parameter's name and the number of its earlier exchanges:
    `seed` must be the same on all ranks, and state_dict() has it. With error_feedback, the other
    elements are added to the next step's gradients; without it, they are lost. Late gradients
    arrive in larger pieces: with error feedback, a small share and an optimizer's momentum need a
    lower learning rate, or training diverges.
    """

    def __init__(self, k: float = 0.01, seed: int = 0, error_feedback: bool = True) -> None:
        check_k(k)
        self._k = k
        self._seed = seed
        self._exchanges = Exchanges()
        self._feedback = ErrorFeedback(error_feedback)

    def _draw(self, part):
        exchange = self._exchanges.next([part.name])
        text = "%d/%d/%s" % (self._seed, exchange, part.name)
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
        generator = torch.Generator().manual_seed(number)
        order = torch.randperm(part.stop - part.start, generator=generator)
        return order[: elements_of(self._k, part)] + part.start

    def start(self, bucket: Bucket) -> Handle[Tensor]:
        values = self._feedback.corrected(bucket)
        places = torch.cat([self._draw(part) for part in bucket.parts])
        chosen = values[places].to(bucket.buffer.dtype)
        values[places] -= chosen.to(values.dtype)  # the remainder
        sent = torch.cat([chosen, mark_not_finite(values).to(chosen.dtype)])
        sending = start_reduce(sent, sent, bucket.name, Average, bucket.priority, wire="same")

        def finish():
            average = sending.wait()
            bucket.buffer.fill_(0.0 if torch.isfinite(average[-1]) else float("nan"))
            bucket.buffer[places] = average[:-1]
            self._feedback.keep(bucket, values)
            return bucket.buffer

        return Handle([sending], finish)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "exchanges": self._exchanges.state_dict(),
            "residuals": self._feedback.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seed = state["seed"]
        self._exchanges.load_state_dict(state["exchanges"])
        self._feedback.load_state_dict(state["residuals"])
