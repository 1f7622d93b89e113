"""Names for operations that the caller does not name.

Ranks call unnamed operations in the same order, as with any collective library. Names are reused,
so that a loop does not declare a tensor in every iteration. The choice of the name depends on the
order of the calls alone, never on time. After a mismatch, which every rank of the group hears of,
all of them begin anew.
"""

import collections
import threading

from .. import _core, _errors

_SIDE_BY_SIDE = 4  # unnamed operations on equal tensors that may be under way together
_KEPT = 256  # names; the least recently used name is forgotten


class Unnamed:
    """Operations whose order of calls chooses their names; their names begin with `prefix`."""

    def __init__(self, prefix):
        self._prefix = prefix
        self._lock = threading.Lock()
        self._context = None
        self._refused = False  # an operation since the last call
        self._turns = {}  # by kind -> calls so far
        self._used = collections.OrderedDict()  # name -> the rounds of its last operation

    def start(self, kind, begin):
        """Calls begin(name), which returns an operation whose tensors' names start with `name`;
        `kind` groups operations.
        """
        with self._lock:
            if self._context != _core.context() or self._refused:
                self._context, self._turns, self._refused = _core.context(), {}, False
                self._used.clear()
            turn = self._turns.get(kind, 0)
            self._turns[kind] = turn + 1
            name = "%s%s/%d" % (self._prefix, kind, turn % _SIDE_BY_SIDE)
            operation = begin(name + "/")
            self._used[name] = list(operation.rounds())  # without the result, which the caller owns
            for one in self._used[name]:
                one.tensor.when_refused = self._begin_anew
            self._used.move_to_end(name)
            while len(self._used) > _KEPT:
                self._forget(*self._used.popitem(last=False))
            return operation

    def _begin_anew(self):
        self._refused = True

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
