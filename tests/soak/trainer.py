"""A rank of a job of the soak: declares, trains, checks every result and ends as its arguments prescribe.

It calls the C ABI without NumPy, whose import takes longer than such a job. test_generations.py waits for its lines on standard output.
"""
import array
import ctypes
import json
import os
import pathlib
import signal
import sys

# Not the package addend, which imports NumPy.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "addend"))
from _errors import MISMATCH, OK, PEER_LOST
from _library import lib

FLOAT32, FLOAT64, INT64 = 0, 1, 5
TYPE_CODES = {FLOAT32: "f", FLOAT64: "d", INT64: "q"}
SUM, MAX, BROADCAST, ACCUMULATE = 0, 3, 4, 5
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LONGEST_S = 90  # a rank that hangs dies, and the test sees that


class Failed(Exception):
    def __init__(self, code):
        super().__init__(lib.addend_last_error().decode())
        self.code = code


def check(code):
    if code != OK:
        raise Failed(code)


def say(word):
    print(word, flush=True)


class Tensor:
    """Pushes pattern * factor, where the factor depends on rank and round; checks the result of the operation."""

    def __init__(self, context, name, dtype, op, elements):
        self.op, self.elements, self.round = op, elements, 0
        self.pattern = [i % 251 + 1 for i in range(elements)]
        self.code = TYPE_CODES[dtype]
        self.tensor, self.out = ctypes.c_void_p(), array.array(self.code, bytes(elements * array.array(self.code).itemsize))
        self._known = {}
        shape = (ctypes.c_int64 * 1)(elements)
        check(lib.addend_declare(context, name.encode(), shape, 1, dtype, op, ctypes.byref(self.tensor)))

    def _of(self, factor):
        if factor not in self._known:
            self._known[factor] = array.array(self.code, [value * factor for value in self.pattern])
        return self._known[factor]

    def push(self, factor):
        """A handle. `in` must stay as it is until the result is there: it is kept."""
        handle = ctypes.c_void_p()
        given = None if factor is None else self._of(factor).buffer_info()[0]
        check(lib.addend_push_pull(self.tensor, given, self.out.buffer_info()[0], 0, ctypes.byref(handle)))
        return handle

    def factor(self, rank):
        if self.op == BROADCAST:
            return self.round % 2 + 1 if rank == self.round % SIZE else None
        return rank + 1 if self.op == ACCUMULATE else (rank + 1) * (self.round % 2 + 1)

    def start(self):
        self.handle = self.push(self.factor(RANK))

    def finish(self):
        wait(self.handle)
        if self.op != ACCUMULATE:
            factors = [factor for factor in map(self.factor, range(SIZE)) if factor is not None]
            self.expect(sum(factors) if self.op == SUM else max(factors))
        self.round += 1

    def expect(self, factor):
        assert self.out == self._of(factor), f"rank {RANK}, round {self.round}: {self.out[:3]}, not {self._of(factor)[:3]}"


def wait(handle):
    code = lib.addend_wait(handle, -1)
    lib.addend_release(handle)
    check(code)


def train(tensors, rounds):
    for _ in range(rounds):
        for tensor in tensors:
            tensor.start()
        for tensor in tensors:
            tensor.finish()


def check_asynchronous(tensors):
    """After a synchronous round all ranks' updates are in the latest value, to which zeros add nothing."""
    synchronous = [tensor for tensor in tensors if tensor.op != ACCUMULATE]
    train(synchronous, 1)
    for tensor in tensors:
        if tensor.op == ACCUMULATE:
            wait(tensor.push(0))
            tensor.expect(tensor.round * sum(range(1, SIZE + 1)))
    train(synchronous, 1)  # nobody's next update comes before all have looked


def until_lost(tensors):
    """Trains until another rank or its agent is gone, which every rank must be told."""
    try:
        while True:
            train(tensors, 1)
    except Failed as failed:
        assert failed.code == PEER_LOST, (failed.code, str(failed))
    say("lost")


def end(how, context, tensors):
    if how == "raise" and RANK == 1:
        raise RuntimeError("as planned")
    if how == "leave" and RANK == 1:
        lib.addend_shutdown(context)
        return
    if how in ("raise", "leave", "killed"):
        say("running")
        until_lost(tensors)
    if how == "mismatch":
        try:
            train([Tensor(context, "odd", FLOAT32, SUM, 10 + RANK)], 1)
            raise AssertionError("two shapes of one tensor agree")
        except Failed as failed:
            assert failed.code == MISMATCH, (failed.code, str(failed))
    if how == "undeclare":
        for tensor in tensors:
            check(lib.addend_undeclare(tensor.tensor))
    if how == "gate":  # the test looks at the job, and says when to go on
        say("running")
        sys.stdin.readline()
    lib.addend_shutdown(context)


def main():
    signal.alarm(LONGEST_S)
    p = json.loads(sys.argv[1])
    context = ctypes.c_void_p()
    check(lib.addend_init(None, ctypes.byref(context)))
    tensors = [Tensor(context, *of_one) for of_one in p["tensors"]]
    train(tensors, p["rounds"])
    check_asynchronous(tensors)
    say("right")
    end(p["ending"], context, tensors)


main()
