"""Counts of exchanges, from which ranks make the same choices without asking each other."""

from ... import _core


class Exchanges:
    """Counts by parameter name, the same on all ranks.

    The counts restart when the process has joined a job again: other ranks may be new, with no
    counts. Loaded counts continue, so either all ranks load counts of the same step, or no rank
    loads any.
    """

    def __init__(self):
        self._counts = {}
        self._context = None  # the context in which the counts were made

    def next(self, names):
        """Counts an exchange; returns the number of earlier exchanges of these parameters."""
        context = _core.context()
        if self._context not in (None, context):
            self._counts = {}
        self._context = context
        before = min((self._counts.get(name, 0) for name in names), default=0)
        for name in names:
            self._counts[name] = self._counts.get(name, 0) + 1
        return before

    def state_dict(self):
        return dict(self._counts)

    def load_state_dict(self, state):
        self._counts = dict(state)
        self._context = None

    def __getstate__(self):
        return {"_counts": self._counts, "_context": None}
