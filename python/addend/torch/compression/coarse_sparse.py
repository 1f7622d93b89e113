"""Whole chunks of the gradients, the same ones from all ranks: those that matter most.

The coarse-grained sparse communication of GradientFlow (Sun et al., 2019): what travels is dense, so
that it is summed as any tensor is, and which chunks it holds was agreed on in the step before.
"""

import contextlib
import warnings

import torch

from ..._core import Average, Sum
from .._handle import Handle
from .._rounds import start_reduce
from .error_feedback import ErrorFeedback, mark_not_finite
from .exchanges import Exchanges
from .scheme import Scheme, share_of

_LEVELS = 5  # of the density while warming up: each has tensors of its own


class CoarseSparse(Scheme):
    """A share of every bucket's chunks travels in a step: those with the largest gradients.

    density         the share of the chunks, at least one of a bucket
    chunk_elements  the length of a chunk; the last one of a bucket may be shorter
    momentum        the optimizer's. Gradients that are not sent are kept, times the momentum, and
                    added to the next ones, as the optimizer's own momentum would have it
    warm_up_steps   steps in which the density falls from 1 to `density`, in levels
    correction      False: what is not sent is lost, and the optimizer sees zeros

    The size of a chunk's gradients is their L1 norm, summed over the ranks: of the average where the
    chunk was sent, else of every rank's own. The sums of one step choose the chunks of the next, so
    nothing waits for them. The first step of a bucket is dense, and training warms up again when the
    processes have joined a job anew without a loaded state.

    With correction the optimizer's step has to run within stepping(): elements without a gradient
    keep their values, and what the optimizer keeps of them. Only tensors that the step itself makes
    are as the optimizer leaves them.
    """

    def __init__(self, density=0.1, chunk_elements=32768, momentum=0.9, warm_up_steps=100, correction=True):
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
        self._norms = {}  # names of a bucket's parameters -> a handle: the sums of the last step
        self._buckets = {}  # bucket name -> (names of its parameters, the tensor of its chunks)
        self._still = {}  # parameter name -> (its part, which elements have no gradient), or None
        self._unused = set()  # buckets with such elements, since the last stepping()
        self._warned = False

    def start(self, bucket):
        self._check_stepping(bucket)
        values = self._history.corrected(bucket)
        chunks = self._chunks(values)
        names = tuple(part.name for part in bucket.parts)
        important = self._choose(names, len(chunks))
        places = important.nonzero().flatten()
        norms = chunks.abs().sum(1)
        # Of a short chunk only its own elements: all of the bucket travels as it is.
        length = min(values.numel(), len(places) * self._chunk_elements)
        sent = torch.cat([chunks[places].reshape(-1)[:length], mark_not_finite(norms[~important])])
        sent = sent.to(bucket.buffer.dtype)
        tensor = self._tensor(bucket, names, len(places))
        sending = start_reduce(sent, sent, tensor, Average, bucket.priority)

        def finish():
            average = sending.wait()
            arrived = self._chunks(average[:length])
            result = torch.zeros(chunks.shape, dtype=bucket.buffer.dtype)
            result[places] = arrived
            if not torch.isfinite(average[-1]):
                result.fill_(float("nan"))  # on all ranks: some rank has such a value that was not sent
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
        """`flat` as rows of chunk_elements, with zeros behind its end: not always memory of its own."""
        rows = max(1, -(-flat.numel() // self._chunk_elements))
        missing = rows * self._chunk_elements - flat.numel()
        return torch.nn.functional.pad(flat, (0, missing)).view(rows, self._chunk_elements)

    def _choose(self, names, chunks):
        """Which chunks are important: the same on all ranks, because the sums are."""
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
        # One that is not finite has to arrive. Of equal ones the first is taken.
        infinite = float("inf")
        norms = torch.nan_to_num(norms, nan=infinite, posinf=infinite)
        important[norms.sort(descending=True, stable=True).indices[count:]] = False
        return important

    def _density_of(self, step):
        if step >= self._warm_up_steps:
            return self._density
        return self._density ** (step * _LEVELS // self._warm_up_steps / _LEVELS)

    def _tensor(self, bucket, names, count):
        """The name of the tensor for that many chunks; the one for another number is undeclared."""
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
            self._norms[names] = start_reduce(norms, norms, name, Sum, bucket.priority)

    def _note_still(self, bucket, important):
        """Notes which elements of every parameter have no gradient in this step."""
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
    def stepping(self, optimizer, names):
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

    def forget(self, bucket_name):
        names, _ = self._buckets.get(bucket_name, (None, None))
        if names in self._norms:
            # Every rank began it at the end of the last step, so it ends without this one.
            self._norms[names].wait()
        super().forget(bucket_name)
        self._buckets.pop(bucket_name, None)
        self._norms.pop(names, None)
        self._unused.discard(bucket_name)

    def state_dict(self):
        return {
            "history": self._history.state_dict(),
            "exchanges": self._exchanges.state_dict(),
            "norms": [(list(names), norms.wait().clone()) for names, norms in self._norms.items()],
        }

    def load_state_dict(self, state):
        self._history.load_state_dict(state["history"])
        self._exchanges.load_state_dict(state["exchanges"])
        self._norms = {tuple(names): _known(norms.clone()) for names, norms in state["norms"]}
        self._still, self._unused = {}, set()

    def __getstate__(self):
        # Without what belongs to this process: handles, and masks for a step that has been taken.
        mine = {**self.__dict__, "_norms": {}, "_buckets": {}, "_still": {}, "_unused": set()}
        return {"mine": mine, "state": self.state_dict()}

    def __setstate__(self, state):
        self.__dict__.update(state["mine"])
        self.load_state_dict(state["state"])


def _known(value):
    return Handle([], lambda: value)


def _tensors_of(optimizer, parameter):
    """The parameter and what the optimizer keeps for each of its elements, by name."""
    yield None, parameter.detach()
    for key, value in optimizer.state.get(parameter, {}).items():
        if torch.is_tensor(value) and value.shape == parameter.shape and key != "step":
            yield key, value.detach()
