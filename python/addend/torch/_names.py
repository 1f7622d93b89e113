"""Names for operations that the caller does not name.

Ranks call unnamed operations in the same order, as with any collective library. Names are reused,
so that a loop does not declare a tensor in every iteration. The choice of the name depends on the
order of the calls alone, never on time.
"""

import collections
import threading

from .. import _core, _errors

_SIDE_BY_SIDE = 4  # unnamed operations on equal tensors that may be under way together
_KEPT = 256  # names; the least recently used name is forgotten


class _Unnamed:
    def __init__(self):
        self._lock = threading.Lock()
        self._context = None
        self._turns = {}  # by kind -> calls so far
        self._used = collections.OrderedDict()  # name -> the rounds of its last operation

    def start(self, kind, begin):
        """Calls begin(name), which returns an operation whose tensors' names start with `name`;
        `kind` groups operations.
        """
        with self._lock:
            if self._context != _core.context():
                self._context, self._turns = _core.context(), {}
                self._used.clear()
            turn = self._turns.get(kind, 0)
            self._turns[kind] = turn + 1
            name = "%s/%d" % (kind, turn % _SIDE_BY_SIDE)
            operation = begin(name + "/")
            self._used[name] = list(operation.rounds())  # without the result, which the caller owns
            self._used.move_to_end(name)
            while len(self._used) > _KEPT:
                self._forget(*self._used.popitem(last=False))
            return operation

    def _forget(self, name, rounds):
        # All ranks forget the name here, so its operation must have ended. It began before this
        # call, so the other ranks reach it without this rank.
        for one in rounds:
            try:
                one.wait()
            except _errors.Error:
                pass  # the waiter of that operation gets the error
        for tensor in _core.declared_under(name + "/"):
            _core.undeclare(tensor)


_unnamed = _Unnamed()


def start(name, kind, begin):
    """Calls begin(name); without a name, the order of the calls chooses a name of that kind."""
    if name is not None:
        if not isinstance(name, str):
            raise TypeError("a tensor's name must be a str, not %r" % (name,))
        return begin(name)
    return _unnamed.start("addend.unnamed/" + kind, begin)
