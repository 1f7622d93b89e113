"""Error feedback: adds the remainders of a step to the next step's gradients, so that nothing is lost."""

import torch


def working_dtype(dtype):
    """The dtype of the remainders: small remainders would vanish in 16 bits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def mark_not_finite(left_out):
    """0 if all values are finite, else NaN: added to the sent values, it tells all ranks."""
    return (left_out * 0).sum().reshape(1)


class ErrorFeedback:
    """The remainders of a rank, by parameter name; `enabled` False keeps no remainders."""

    def __init__(self, enabled=True):
        self._enabled = enabled
        self._kept = {}  # parameter name -> flat tensor

    def corrected(self, bucket):
        """The bucket's values plus the kept remainders: a new tensor, in working_dtype()."""
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
        """Keeps `left_out`, a tensor like corrected()'s, and takes ownership of it.

        Call it when bucket.buffer holds the average. If the average is not finite, the former
        remainders stay: the step will be skipped, and its gradients with it.
        """
        if self._enabled and torch.isfinite(bucket.buffer).all():
            for part in bucket.parts:
                self._kept[part.name] = left_out[part.start : part.stop]

    def state_dict(self):
        return {name: kept.clone() for name, kept in self._kept.items()}

    def load_state_dict(self, state):
        self._kept = {name: kept.clone() for name, kept in state.items()}

    def __getstate__(self):
        # Clones, because a view of a bucket's memory would be pickled with the whole bucket.
        return {"_enabled": self._enabled, "_kept": self.state_dict()}
