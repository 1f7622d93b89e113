"""Sends the most important chunks of the gradients, the same chunks on all ranks.

This is the coarse-grained sparse communication of GradientFlow (Sun et al., 2019): the sent tensor
is dense, so it is summed as any tensor is, and the ranks agreed in the step before on the chunks
that it holds.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Iterator, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..._core import Average, Sum
from .._handle import Handle
from .._rounds import start_reduce
from .error_feedback import ErrorFeedback, mark_not_finite
from .exchanges import Exchanges
from .scheme import Bucket, Scheme, share_of

_LEVELS = 5  # of the density while warming up: each level has its own tensors


class CoarseSparse(Scheme):
    """Sends a share of every bucket's chunks in a step: the chunks with the largest gradients.

    density         the share of the chunks, at least one chunk of a bucket
    chunk_elements  the length of a chunk; the last chunk of a bucket may be shorter
    momentum        the optimizer's. Gradients that are not sent are kept, times the momentum, and
                    added to the next gradients, as the optimizer's own momentum would add them
    warm_up_steps   steps in which the density falls from 1 to `density`, in levels
    correction      False: gradients that are not sent are lost, and the optimizer sees zeros

    The size of a chunk's gradients is their L1 norm, summed over the ranks: the norm of the average
    if the chunk was sent, else of every rank's own gradients. The sums of a step choose the chunks
    of the next step, so the choice never delays a step. The first step of a bucket is dense, and
    training warms up again when the processes have joined a new job without a loaded state.

    With correction the optimizer's step has to run within stepping(): elements without a gradient
    keep their values, and the optimizer's state of them. Only tensors that the step itself makes
    are as the optimizer leaves them.
    """

    def __init__(
        self,
        density: float = 0.1,
        chunk_elements: int = 32768,
        momentum: float = 0.9,
        warm_up_steps: int = 100,
        correction: bool = True,
    ) -> None:
        if not 0 < density <= 1:
            raise ValueError("density must be above 0 and at most 1, not %r" % (density,))
        if not (isinstance(chunk_elements, int) and chunk_elements >= 1):
            raise ValueError("chunk_elements must be a number of elements, not %r" % (chunk_elements,))
        if not 0 <= momentum < 1:
            raise ValueError("momentum must be at least 0 and below 1, not %r" % (momentum,))
        if not warm_up_steps >= 0:
            raise ValueError("warm_up_steps must be a number of steps, not %r" % (warm_up_steps,))
        self._density = density
        self._chunk_elements = chunk_elements
        self._momentum = momentum
        self._warm_up_steps = warm_up_steps
        self._correction = correction
        self._history = ErrorFeedback(correction)
        self._exchanges = Exchanges()
        self._norms: dict[Any, Any] = {}  # names of a bucket's parameters -> a handle: the sums of the last step
        self._buckets: dict[str, Any] = {}  # bucket name -> (names of its parameters, the tensor of its chunks)
        # Parameter name -> (its part, mask of the elements without a gradient), or None.
        self._still: dict[str, Any] = {}
        self._unused: set[str] = set()  # buckets with such elements, since the last stepping()
        self._warned = False

    def start(self, bucket: Bucket) -> Handle[Tensor]:
        self._check_stepping(bucket)
        values = self._history.corrected(bucket)
        chunks = self._chunks(values)
        names = tuple(part.name for part in bucket.parts)
        important = self._choose(names, len(chunks))
        places = important.nonzero().flatten()
        norms = chunks.abs().sum(1)
        # Only the elements that a short chunk has: a bucket that is sent whole is sent unpadded.
        length = min(values.numel(), len(places) * self._chunk_elements)
        sent = torch.cat([chunks[places].reshape(-1)[:length], mark_not_finite(norms[~important])])
        sent = sent.to(bucket.buffer.dtype)
        tensor = self._tensor(bucket, names, len(places))
        sending = start_reduce(sent, sent, tensor, Average, bucket.priority, wire="same")

        def finish():
            average = sending.wait()
            arrived = self._chunks(average[:length])
            result = torch.zeros(chunks.shape, dtype=bucket.buffer.dtype)
            result[places] = arrived
            if not torch.isfinite(average[-1]):
                # On all ranks: a value that was not sent is not finite on some rank.
                result.fill_(float("nan"))
            bucket.buffer.copy_(result.view(-1)[: values.numel()])
            self._note_still(bucket, important)
            if torch.isfinite(average).all():
                norms[places] = arrived.to(norms.dtype).abs().sum(1)
                self._exchange_norms(bucket, names, norms)
                chunks[places] = 0
                chunks.mul_(self._momentum)
                self._history.keep(bucket, chunks.view(-1)[: values.numel()])
            return bucket.buffer

        return Handle([sending], finish)

    def _chunks(self, flat):
        """`flat` as rows of chunk_elements, padded with zeros; may share the memory of `flat`."""
        rows = max(1, -(-flat.numel() // self._chunk_elements))
        missing = rows * self._chunk_elements - flat.numel()
        return torch.nn.functional.pad(flat, (0, missing)).view(rows, self._chunk_elements)

    def _choose(self, names, chunks):
        """The important chunks: the same on all ranks, because the sums are."""
        step = self._exchanges.next(names)
        if step == 0:
            self._norms.pop(names, None)
        important = torch.ones(chunks, dtype=torch.bool)
        count = share_of(self._density_of(step), chunks)
        if count == chunks or names not in self._norms:
            return important
        norms = self._norms[names].wait()
        if norms.numel() != chunks:
            return important
        # A chunk that is not finite has to be sent. Of equal chunks the first is chosen.
        infinite = float("inf")
        norms = torch.nan_to_num(norms, nan=infinite, posinf=infinite)
        important[norms.sort(descending=True, stable=True).indices[count:]] = False
        return important

    def _density_of(self, step):
        if step >= self._warm_up_steps:
            return self._density
        return self._density ** (step * _LEVELS // self._warm_up_steps / _LEVELS)

    def _tensor(self, bucket, names, count):
        """The tensor's name for that many chunks; undeclares the tensor for another number of chunks."""
        name = "%s/%d chunks" % (bucket.name, count)
        _, former = self._buckets.get(bucket.name, (names, name))
        if former != name:
            super().forget(former)
        self._buckets[bucket.name] = (names, name)
        return name

    def _exchange_norms(self, bucket, names, norms):
        if norms.numel() > 1:
            norms = norms.to(torch.float32)
            name = bucket.name + "/norms"
            self._norms[names] = start_reduce(
                norms, norms, name, Sum, bucket.priority, wire="same"
            )

    def _note_still(self, bucket, important):
        """Records which elements of every parameter have no gradient in this step."""
        if not self._correction:
            return
        still = torch.repeat_interleave(~important, self._chunk_elements)
        for part in bucket.parts:
            without = bool(still[part.start : part.stop].any())
            self._still[part.name] = (part, still) if without else None
        if not important.all():
            self._unused.add(bucket.name)

    def _check_stepping(self, bucket):
        if bucket.name in self._unused and not self._warned:
            self._warned = True
            warnings.warn(
                "CoarseSparse: the last averages were not used within stepping(): write `with "
                "state.stepping(optimizer): optimizer.step()`, or elements without a gradient move by "
                "their momentum alone (and use no_sync() where gradients are accumulated)"
            )

    @contextlib.contextmanager
    def stepping(self, optimizer: Optimizer, names: Mapping[Tensor, str]) -> Iterator[None]:
        self._unused.clear()
        saved = []
        for parameter, name in names.items():
            part, still = self._still.get(name) or (None, None)
            if part is None:
                continue
            without = part.shaped(still, parameter.shape).to(parameter.device)
            for key, tensor in _tensors_of(optimizer, parameter):
                saved.append((parameter, key, without, tensor[without]))
        yield
        for parameter, key, without, values in saved:
            tensor = dict(_tensors_of(optimizer, parameter)).get(key)
            if tensor is not None:
                tensor[without] = values

    def forget(self, bucket_name: str) -> None:
        names, _ = self._buckets.get(bucket_name, (None, None))
        if names in self._norms:
            # Every rank began this exchange at the end of the last step, so it ends without this
            # rank.
            self._norms[names].wait()
        super().forget(bucket_name)
        self._buckets.pop(bucket_name, None)
        self._norms.pop(names, None)
        self._unused.discard(bucket_name)

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": self._history.state_dict(),
            "exchanges": self._exchanges.state_dict(),
            "norms": [(list(names), norms.wait().clone()) for names, norms in self._norms.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history.load_state_dict(state["history"])
        self._exchanges.load_state_dict(state["exchanges"])
        self._norms = {tuple(names): _known(norms.clone()) for names, norms in state["norms"]}
        self._still, self._unused = {}, set()

    def __getstate__(self):
        # Excludes the state of this process: handles, and masks for a step that has been taken.
        mine = {**self.__dict__, "_norms": {}, "_buckets": {}, "_still": {}, "_unused": set()}
        return {"mine": mine, "state": self.state_dict()}

    def __setstate__(self, state):
        self.__dict__.update(state["mine"])
        self.load_state_dict(state["state"])


def _known(value):
    return Handle([], lambda: value)


def _tensors_of(optimizer, parameter):
    """The parameter and the optimizer's per-element state of it, by name."""
    yield None, parameter.detach()
    for key, value in optimizer.state.get(parameter, {}).items():
        if torch.is_tensor(value) and value.shape == parameter.shape and key != "step":
            yield key, value.detach()
