"""What was not sent in one step is added to the next step's gradients, so that nothing is lost."""

import torch


def working_dtype(dtype):
    """The dtype in which what is left out is kept: small remainders would vanish in 16 bits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def mark_not_finite(left_out):
    """0 if all values are finite, else NaN: added to what is sent, it tells all ranks."""
    return (left_out * 0).sum().reshape(1)


class ErrorFeedback:
    """The remainders of one rank, by parameter name; `enabled` False keeps none."""

    def __init__(self, enabled=True):
        self._enabled = enabled
        self._kept = {}  # parameter name -> flat tensor

    def corrected(self, bucket):
        """The bucket's values with what is kept added to them: a tensor of its own, in working_dtype()."""
        values = bucket.buffer.to(working_dtype(bucket.buffer.dtype), copy=True)
        for part in bucket.parts:
            kept = self._kept.get(part.name)
            if kept is None:
                continue
            if kept.numel() != part.stop - part.start:
                raise ValueError(
                    "%d values are kept of the parameter %r, which has %d; load the state of the same "
                    "model" % (kept.numel(), part.name, part.stop - part.start)
                )
            values[part.start : part.stop] += kept
        return values

    def keep(self, bucket, left_out):
        """Keeps `left_out`, a tensor like corrected()'s, which is the caller's no longer.

        Call it when bucket.buffer holds the average. Where that is not finite, what was kept before
        stays: the step is going to be skipped, and its gradients with it.
        """
        if self._enabled and torch.isfinite(bucket.buffer).all():
            for part in bucket.parts:
                self._kept[part.name] = left_out[part.start : part.stop]

    def state_dict(self):
        return {name: kept.clone() for name, kept in self._kept.items()}

    def load_state_dict(self, state):
        self._kept = {name: kept.clone() for name, kept in state.items()}

    def __getstate__(self):
        # Clones, because a part of a bucket's memory would be pickled with all of it.
        return {"_enabled": self._enabled, "_kept": self.state_dict()}
