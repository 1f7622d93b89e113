"""The communication hook of DistributedDataParallel.

The backward pass gives a bucket of gradients to the hook as soon as it is complete; the hook pushes
it and returns a future at once, so that the rest of the backward pass overlaps with the sum.
"""

import hashlib
import itertools
from typing import TYPE_CHECKING, Any, ContextManager, Mapping, Optional, Union

import torch
import torch.distributed
from torch import Tensor
from torch.futures import Future
from torch.nn import Module
from torch.optim import Optimizer

from .. import _core, _errors
from . import _completions, _gpu
from ._handle import Handle
from ._tensors import on_host
from .compression import Bucket, Compression, Part, Scheme
from .compression.cast import CastScheme, Compressor, as_scheme

# DistributedDataParallel compares the annotations of hooks with these classes: here annotations are no strings.
if TYPE_CHECKING:
    from torch.distributed import GradBucket
else:
    GradBucket = getattr(torch.distributed, "GradBucket", None)  # None: a PyTorch without torch.distributed

_instances = itertools.count()


class HookState:
    """The hook's state for one model: pass it to register_comm_hook.

    `model` is the module or its DistributedDataParallel. The names of its parameters identify the
    buckets, because DDP rebuilds its buckets after the first step: the tensors of buckets that no
    longer exist are undeclared, and their memory is freed. All ranks have to make their HookStates
    in the same order.

    `compression`: a member of Compression, any object with its compress() and decompress(), or a
    Scheme of addend.torch.compression, which needs the model; the same on all ranks. state_dict()
    has the Scheme's state, which differs between ranks; no_sync() leaves it alone. A HookState can
    also be pickled, without the model: attach() attaches a model again.
    """

    def __init__(
        self,
        model: Optional[Module] = None,
        compression: Union[Compressor, Scheme] = Compression.none,
    ) -> None:
        self._scheme = as_scheme(compression)
        self._plain = compression is Compression.none
        self.attach(model)

    def attach(self, model: Optional[Module]) -> None:
        """Serves this model from now on."""
        self._prefix = "addend.ddp/%d/" % next(_instances)
        self._names: dict[Tensor, str] = {}  # parameter -> name
        self._group_size = None
        if model is not None:
            group = getattr(model, "process_group", None)
            self._group_size = group.size() if group is not None else None
            inner = model
            if isinstance(model, torch.nn.parallel.DistributedDataParallel):
                module: Any = model.module
                inner = module
            self._names = {p: name for name, p in inner.named_parameters()}
        self._known: dict[Any, tuple[str, list[Part]]] = {}  # identity of a bucket -> its name and parts
        self._declared: set[str] = set()  # names of the last backward passes' buckets
        # The following members belong to the backward pass under way.
        self._queued = False  # _finish() is queued
        self._open: list[tuple[str, _completions.Completion]] = []  # by bucket name
        self._error: Optional[Exception] = None

    def __getstate__(self):
        return {"_scheme": self._scheme, "_plain": self._plain}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.attach(None)

    def state_dict(self) -> dict[str, Any]:
        """This rank's compression state, by parameter name. Call it between two steps."""
        return {"compression": type(self._scheme).__name__, "state": self._scheme.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores this rank's state_dict(). Either all ranks load a state of the same step, or no
        rank does.
        """
        mine = type(self._scheme).__name__
        if state["compression"] != mine:
            raise ValueError(
                "the state is one of %s, but this HookState has %s" % (state["compression"], mine)
            )
        self._scheme.load_state_dict(state["state"])

    def stepping(self, optimizer: Optimizer) -> ContextManager[Any]:
        """A context for optimizer.step(): elements whose gradients were not sent stay unchanged.

        CoarseSparse needs it; it has no effect with any other compression.

            with state.stepping(optimizer):
                optimizer.step()
        """
        return self._scheme.stepping(optimizer, self._names)

    def push(self, bucket: GradBucket, scheme: Optional[Scheme] = None) -> Future[Tensor]:
        """Starts the bucket's average; the future's value is the bucket's buffer.

        `scheme` replaces the state's own scheme, which must be Compression.none. An error is raised
        at the end of the backward pass: DDP calls this from C++, which would turn the error into a
        RuntimeError.
        """
        if bucket.index() == 0 or not self._queued:
            self._open, self._error, self._queued = [], None, True
            # Runs before DDP reads the futures.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        try:
            return self._start(bucket, scheme)
        except Exception as error:  # pylint: disable=broad-except
            self._error = self._error or error
            return _completions.completed(error)

    def _start(self, bucket, scheme):
        if self._group_size not in (None, _core.place(_core.lib.addend_size)):
            raise ValueError(
                "DistributedDataParallel works on %d ranks, but this Addend job has %d; start both "
                "with the same ranks"
                % (self._group_size, _core.place(_core.lib.addend_size))
            )
        scheme = self._chosen(scheme)
        name, parts = self._name_and_parts(bucket)
        # The last bucket holds the first layers, which the next forward pass needs first.
        device = bucket.buffer().device
        with _gpu.beside(device, after_current=True):
            operation = _start_scheme(scheme, Bucket(name, bucket.buffer(), parts, bucket.index()))
            under_way = _completions.current().add(operation, device)
        self._open.append((name, under_way))
        if bucket.is_last():
            self._forget_former(scheme)
        return under_way.future

    def _chosen(self, scheme):
        if scheme is not None:
            if not self._plain:
                raise ValueError(
                    "the HookState has a compression already: use addend.torch.ddp_comm_hook with it, "
                    "or torch's fp16_compress_wrapper(addend.torch.ddp_comm_hook)"
                )
            return scheme
        if not self._names and not isinstance(self._scheme, CastScheme):
            raise ValueError(
                "%s remembers by parameter name, but this HookState has no model: give it one with "
                "HookState(model, ...) or attach(model)" % type(self._scheme).__name__
            )
        return self._scheme

    def _finish(self):
        """Runs at the end of the backward pass: waits for the sums, and raises the first error."""
        buckets, self._open, self._queued = self._open, [], False
        if self._error is not None:
            raise self._error
        for _, bucket in buckets:
            bucket.wait()

    def _name_and_parts(self, bucket):
        buffer, parameters = bucket.buffer(), bucket.parameters()
        identity = (buffer.dtype, buffer.numel()) + tuple(id(p) for p in parameters)
        known = self._known.get(identity)
        if known is None:
            names = [self._names.get(p, "") for p in parameters]
            digest = hashlib.sha256(str(buffer.dtype).encode())
            for p, name in zip(parameters, names):
                digest.update(("%s %s;" % (name, tuple(p.shape))).encode())
            # Without names, the position in the pass tells equal buckets apart.
            index = "" if self._names else "/%d" % bucket.index()
            name = self._prefix + digest.hexdigest()[:32] + index
            known = self._known[identity] = (name, _parts(names, parameters))
        return known

    def _forget_former(self, scheme):
        current = {name for name, _ in self._open}
        for name in self._declared - current:
            try:
                scheme.forget(name)
            except _errors.Error as error:
                if error.code != _errors.STATE:
                    raise
                current.add(name)  # still pending: undeclared after a later pass
        self._declared = current


def _start_scheme(scheme, bucket):
    """Starts the exchange: schemes work on host memory; a cast is made on the bucket's device."""
    if not _gpu.on_gpu(bucket.buffer) or isinstance(scheme, CastScheme):
        return scheme.start(bucket)
    host = on_host(bucket.buffer, bucket.buffer.dtype)
    sending = scheme.start(Bucket(bucket.name, host, bucket.parts, bucket.priority))

    def finish():
        return bucket.buffer.copy_(sending.wait())

    return Handle([sending], finish)


def _parts(names, parameters):
    """The parameters' parts of a bucket's buffer. DDP keeps the order in memory of dense parameters."""
    parts, start = [], 0
    for name, p in zip(names, parameters):
        stride = None
        if not p.is_contiguous() and torch.empty_like(p).stride() == p.stride():
            stride = p.stride()
        parts.append(Part(name, start, start + p.numel(), stride))
        start += p.numel()
    return parts


_default_state = HookState()
_FP16, _BF16 = CastScheme(Compression.fp16), CastScheme(Compression.bf16)


def _state_of(state: Optional[HookState]) -> HookState:
    return _default_state if state is None else state


def ddp_comm_hook(state: Optional[HookState], bucket: GradBucket) -> Future[Tensor]:
    """For model.register_comm_hook(state, addend.torch.ddp_comm_hook): averages with Addend.

    `state` is a HookState, or None for a process with a single model. DDP needs a torch process
    group for its own construction; torch.distributed.init_process_group("gloo") suffices. When the
    job fails, backward() raises its error.
    """
    return _state_of(state).push(bucket)


def fp16_compress_hook(state: Optional[HookState], bucket: GradBucket) -> Future[Tensor]:
    """ddp_comm_hook with gradients sent as float16: register_comm_hook(None, fp16_compress_hook)."""
    return _state_of(state).push(bucket, _FP16)


def bf16_compress_hook(state: Optional[HookState], bucket: GradBucket) -> Future[Tensor]:
    """ddp_comm_hook with gradients sent as bfloat16."""
    return _state_of(state).push(bucket, _BF16)


# DDP recognises torch's own bfloat16 hook by its name, and refuses it on CPUs.
bf16_compress_hook.__name__ = "addend_bf16_compress_hook"
