"""The collectives of a process group: Addend's, and those that Addend leaves to Gloo or NCCL.

Ranks call the collectives of a group in the same order, so that order chooses the names of the
tensors (_names.py). Operations, dtypes and layouts that Addend does not have go to the inner group
too: the choice depends on the arguments alone, which are alike on all ranks.
"""

import functools
import logging
from typing import Any

import torch
import torch.distributed

from .. import local_size, size
from .._core import Average, Max, Min, Sum
from . import _names, _works
from ._broadcast import Broadcast
from ._handle import Handle
from ._rounds import start_reduce
from ._tensors import CODES, WIDENED, push_tensor

# None: PyTorch 1.13, which does not compile.
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)

dist: Any = torch.distributed  # whose annotations differ between versions
ReduceOp = dist.ReduceOp

_log = logging.getLogger("addend.torch")

_OPS = ((ReduceOp.SUM, Sum), (ReduceOp.AVG, Average), (ReduceOp.MIN, Min), (ReduceOp.MAX, Max))
_SUMMED = {*CODES, *WIDENED} - {torch.bool}  # a sum of booleans is not theirs in PyTorch
_DEVICES = ("cpu", "cuda")

# Under the names that the C++ classes of PyTorch's versions have.
DELEGATED = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "allreduce_sparse", "alltoall", "alltoall_base", "gather", "gather_into_tensor", "gather_single",
    "monitored_barrier", "recv", "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
)


def _listed(tensors):
    return [tensors] if torch.is_tensor(tensors) else list(tensors)


def _described(tensors):
    return ";".join("%s%s" % (str(one.dtype)[len("torch.") :], list(one.shape)) for one in tensors)


class Inner:
    """The group that carries all other collectives: Gloo for the CPU, NCCL for GPUs."""

    def __init__(self, title, store, rank, size, timeout):
        self._title = title
        self._place = (rank, size)
        self._store = store
        self._timeout = timeout
        # All ranks connect to each other here: a later send needs only two of them.
        self.gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo/", store), rank, size, timeout=timeout)
        self._nccl = None
        self._told = set()

    def of(self, tensors, name):
        """The group for these arguments, and notes the collective's name in the log."""
        on_gpu = any(one.is_cuda for one in _flat(tensors)) and dist.is_nccl_available()
        if name not in self._told:
            self._told.add(name)
            _log.info("%s: %s goes through %s", self._title, name, "NCCL" if on_gpu else "Gloo")
        return self.nccl() if on_gpu else self.gloo

    def nccl(self):
        """Its ranks connect with the first collective."""
        if self._nccl is None:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            store = dist.PrefixStore("nccl/", self._store)
            self._nccl = dist.ProcessGroupNCCL(store, *self._place, options)
        return self._nccl

    def shutdown(self):
        """Ends NCCL's threads, which look into the store. Gloo's end with the process."""
        nccl, self._nccl = self._nccl, None
        end = getattr(nccl, "shutdown", getattr(nccl, "_shutdown", None))  # before PyTorch 2.7: _shutdown
        if end is not None:
            end()


def _flat(arguments):
    for one in arguments:
        if torch.is_tensor(one):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _flat(one)


class Collectives:
    """The common part of Addend's Backend and Addend's ProcessGroup, which call set_up().

    A call's `opts` are PyTorch's (AllreduceOptions and so on), or None.
    """

    def set_up(self, title, prefix, ranks, inner, timeout, kept):
        """`title` names the group in errors; `prefix` begins its tensors' names. `ranks`: in the job, by
        rank in the group. `kept`: None if PyTorch itself keeps works alive.
        """
        self._title = title
        self._unnamed = _names.Unnamed(prefix)
        self._ranks = ranks
        whole = len(ranks) == size()
        self._participants = None if whole else tuple(sorted(ranks))
        # The GPUs of a node reach each other faster than its host memory, where Addend sums for some ranks.
        self._gpus_alone = not whole and len({one // local_size() for one in ranks}) == 1
        self._inner = inner
        self._limit_s = timeout.total_seconds()
        self._kept = kept

    def getBackendName(self):
        return "addend"

    def allreduce(self, tensors, opts=None):
        return self._all_reduce("allreduce", _listed(tensors), opts)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._all_reduce("allreduce_coalesced", _listed(tensors), opts)

    def broadcast(self, tensors, opts=None):
        tensors = _listed(tensors)
        if not self._sums(tensors):
            return self._left("broadcast", opts, tensors)
        root = self._ranks[0 if opts is None else getattr(opts, "rootRank", opts)]

        def begin(name):
            started = [
                Broadcast(one, one, root, "%s%d" % (name, i), self._participants)
                for i, one in enumerate(tensors)
            ]

            def finish():
                for one in started:
                    one.result()
                return tensors

            return Handle([one.round for one in started], finish)

        return self._start("broadcast/%d/%s" % (root, _described(tensors)), begin, tensors, opts)

    def barrier(self, opts=None):
        token = torch.zeros(1, dtype=torch.int32)

        def begin(name):
            return Handle([push_tensor(token, token, name, Sum, 0, self._participants)], lambda: [token])

        return self._start("barrier", begin, [token], opts)

    def _left(self, name, opts, *tensors):
        """Leaves the collective to the inner group."""
        arguments = tensors if opts is None else (*tensors, opts)
        return getattr(self._inner.of(tensors, name), name)(*arguments)

    def _all_reduce(self, name, tensors, opts):
        op = self._op_of(tensors, opts)
        return self._left(name, opts, tensors) if op is None else self._reduce(tensors, op, opts)

    def _sums(self, tensors):
        """Whether Addend takes such tensors at all."""
        for one in tensors:
            if one.layout != torch.strided or one.device.type not in _DEVICES:
                return False
            if one.is_cuda and self._gpus_alone and dist.is_nccl_available():
                return False
        return True

    def _op_of(self, tensors, opts):
        """Addend's operation; None if the inner group has to do it."""
        if not self._sums(tensors):
            return None
        asked = ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        op = next((own for theirs, own in _OPS if asked == theirs), None)
        for one in tensors:
            if one.dtype not in _SUMMED and not (one.is_complex() and op in (Sum, Average)):
                return None
            if op == Average and not (one.is_floating_point() or one.is_complex()):
                return None
        return op

    def _reduce(self, tensors, op, opts):
        flat = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in tensors]

        def begin(name):
            started = [
                start_reduce(one, one, "%s%d" % (name, i), op, participants=self._participants)
                for i, one in enumerate(flat)
            ]

            def finish():
                for one in started:
                    one.wait()
                for target, summed in zip(tensors, flat):
                    if target.is_conj():
                        target.copy_(torch.view_as_complex(summed))
                return tensors

            return Handle(started, finish)

        kind = "all_reduce/%s/%s" % (repr(op)[len("addend.") :], _described(tensors))
        return self._start(kind, begin, tensors, opts)

    def _start(self, kind, begin, tensors, opts):
        timeout = getattr(opts, "timeout", None)
        limit = timeout.total_seconds() if timeout is not None else 0
        work = _works.start(
            lambda: self._unnamed.start(kind, begin), tensors, self._title, limit if limit > 0 else self._limit_s
        )
        return work if self._kept is None else self._kept.keep(work)


def _eager(function):
    """The function, as torch.compile takes those of PyTorch's own groups: it is called, and neither it nor
    what it calls is compiled.
    """
    if _frames is None:
        return function

    @functools.wraps(function)
    def call(*arguments, **keywords):
        former = _frames.set_eval_frame(None)
        try:
            return function(*arguments, **keywords)
        finally:
            _frames.set_eval_frame(former)

    if hasattr(_frames, "skip_code"):
        _frames.skip_code(call.__code__)
    elif hasattr(_frames, "set_code_exec_strategy"):  # the same in PyTorch 2.14
        action = _frames._FrameAction
        _frames.set_code_exec_strategy(
            call.__code__, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        )
    return call


for _name in ("allreduce", "allreduce_coalesced", "broadcast", "barrier"):
    setattr(Collectives, _name, _eager(getattr(Collectives, _name)))


def delegating(base, names):
    """A subclass of Collectives and `base` that leaves these names to the inner group."""

    def method(name):
        def call(self, *arguments, **keywords):
            inner = self._inner.of((*arguments, *keywords.values()), name)
            return getattr(inner, name)(*arguments, **keywords)

        call.__name__ = name
        return _eager(call)

    return type("Delegating" + base.__name__, (Collectives, base), {name: method(name) for name in names})
