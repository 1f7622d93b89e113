"""How often gradients were exchanged: what ranks that choose alike without asking each other count."""

from ... import _core


class Exchanges:
    """Counts by parameter name, the same on all ranks.

    They begin anew when the process has joined a job again: other ranks may be new, and know nothing.
    Counts that are loaded go on, so all ranks have to load theirs, of the same step, or none.
    """

    def __init__(self):
        self._counts = {}
        self._context = None  # that in which they were counted

    def next(self, names):
        """How many exchanges of these parameters there were before this one; counts it."""
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
