"""The exchange of a DistributedOptimizer's gradients, from the backward pass to the step."""

import collections
import threading
import weakref

import torch

from .. import _core, _errors
from . import _exact
from ._join import control
from ._rounds import start_reduce
from ._sets import global_process_set
from ._sparse import sparse_allreduce_async
from ._tensors import wire_dtype
from .compression.cast import wire_format_of

# Names of tensors whose optimizer was destroyed. The next optimizer undeclares them, because an
# object may be destroyed anywhere, even within a call that holds a lock.
_abandoned: collections.deque[str] = collections.deque()


def _abandon(hooks, names):
    for hook in hooks:
        hook.remove()
    _abandoned.extend(names)


def _forget_abandoned():
    while _abandoned:
        try:
            _core.undeclare(_abandoned.popleft())
        except _errors.Error:
            pass  # abandoned in the middle of a round, or with its job


class Entry:
    """A parameter of the optimizer. `label` is the user's name for it, `name` its tensor's name."""

    def __init__(self, number, parameter, label, name):
        self.number = number
        self.parameter = parameter
        self.label = label
        self.name = name
        self.passes = 0  # backward passes since the last step
        self.node = None  # the AccumulateGrad node with our hook; this reference keeps it alive
        self.hooked = False
        # The last gradient's, if it was sparse: (sparse dimensions, whether it is summed dense).
        self.sparse = None

    def check_unchanged(self, gradient, version):
        """Raises if the gradient has changed since its push: the sum would overwrite the change."""
        # Views of a shared buffer count their changes together, so a view's version tells nothing.
        if gradient._version != version and not gradient._is_view():
            raise RuntimeError(
                "the gradient of %r was changed while it was being averaged; call "
                "optimizer.synchronize() first (to clip or to unscale), and step within "
                "optimizer.skip_synchronize()" % self.label
            )

    def no_gradient(self):
        """Zeros in the form of the parameter's gradients."""
        if self.sparse is None or self.sparse[1]:
            return torch.zeros_like(self.parameter, requires_grad=False)
        shape, dims = self.parameter.shape, self.sparse[0]
        return torch.sparse_coo_tensor(
            torch.empty((dims, 0), dtype=torch.int64),
            torch.empty((0, *shape[dims:]), dtype=self.parameter.dtype),
            shape,
        )

    def put(self, gradient):
        if self.parameter.grad is not gradient:
            self.parameter.grad = gradient


class _Averaged:
    """A gradient under way; `result` waits for its average."""

    def __init__(self, entry, gradient, result):
        self.entry = entry
        self.gradient = gradient
        self._version = gradient._version
        self._result = result

    def check(self):
        self.entry.check_unchanged(self.gradient, self._version)

    def finish(self):
        """Waits for the average and stores it as the gradient."""
        with torch.no_grad():
            result = self._result()
            if result.layout != torch.strided:
                self.gradient = result.to(self.entry.parameter.device)
            elif result is not self.gradient:
                self.gradient.copy_(result)
            if self.entry.sparse is not None and self.gradient.layout == torch.strided:
                self.gradient = self.gradient.to_sparse(self.entry.sparse[0])
        self.entry.put(self.gradient)


class Singles:
    """Exchanges gradients without a scheme: averages each by itself, in place where possible."""

    takes_sparse = True

    def __init__(self, op, compression, predivide_factor, process_set=global_process_set):
        self._op = op
        self._compression = compression
        self._factors = (1.0 / predivide_factor, predivide_factor)
        self._set = process_set
        self._under_way = []

    def adopt(self, entries):
        """Tensors are declared when they are first pushed."""

    def start(self, entry, gradient, empty):
        """Pushes a gradient that is ready: zeros if this rank has no gradient (`empty`)."""
        if gradient.layout != torch.strided:
            handle = sparse_allreduce_async(gradient, entry.name, self._op, self._set)
            self._under_way.append(_Averaged(entry, gradient, handle.wait))
            return
        with torch.no_grad():
            target, context = self._compression.compress(gradient)
        handle = self._push(entry, None if empty else target, target)

        def result():
            handle.wait()
            return self._compression.decompress(target, context)

        self._under_way.append(_Averaged(entry, gradient, result))

    def _push(self, entry, source, target):
        # The parameters that the forward pass needs first go first.
        priority = -entry.number
        if isinstance(self._op, _exact.Combination):
            return _exact.start(
                self._op, source, target, entry.name, priority, *self._factors, self._set
            )
        participants = self._set.participants
        wire = wire_format_of(self._compression)
        return start_reduce(
            source, target, entry.name, self._op, priority, *self._factors, participants, wire
        )

    def started(self):
        """The gradients under way: all of them once every gradient is ready."""
        return list(self._under_way)

    def clear(self):
        """Makes the next start() begin a new step."""
        self._under_way = []

    def check_join(self):
        """Does nothing: join() works."""

    def start_without_gradients(self, entry):
        """Takes part in another rank's step; the caller discards the handle's result."""
        if entry.sparse is not None and not entry.sparse[1]:
            return sparse_allreduce_async(entry.no_gradient(), entry.name, self._op, self._set)
        scratch, _ = self._compression.compress(torch.zeros_like(entry.parameter, requires_grad=False))
        return self._push(entry, None, scratch)


class Exchange:
    """Tracks the gradients of this step that are under way; `way` is Singles or Buckets.

    Hooks call ready() in the backward pass, from any thread of autograd's. close() starts the
    missing gradients and ends the step's exchange.
    """

    def __init__(self, make_way, passes_per_step, sparse_as_dense, process_set=global_process_set):
        _forget_abandoned()
        self._lock = threading.Lock()
        self._context = _core.context()
        # None: of a process set, whose steps join() does not follow.
        self._number = control.register(self) if process_set is global_process_set else None
        if self._number is not None:
            self._prefix = "addend.optimizer/%d/" % self._number
        else:
            self._prefix = process_set.next_optimizer()
        self.way = make_way(self._prefix)
        self._sparse_as_dense = sparse_as_dense
        self.passes_per_step = passes_per_step
        self._entries = []
        self._labels = set()
        self._adopted = []  # entries that take part: their parameters require a gradient
        self._open = set()  # entries whose gradients are under way
        self.synchronized = False  # the gradients are averages, and no step has used them yet
        self.paused = False  # gradients are added up, and ready() does nothing
        self._hooks, self._names = [], []
        weakref.finalize(self, _abandon, self._hooks, self._names).atexit = False

    # ---- parameters ----

    def add(self, parameter, label):
        """Adds a parameter under the user's name for it."""
        if label in self._labels:
            raise ValueError("two parameters have the name %r; names have to differ" % label)
        entry = Entry(len(self._entries), parameter, label, self._prefix + label)
        self._entries.append(entry)
        self._labels.add(label)
        self._names.append(entry.name)
        if parameter.requires_grad:
            self._hook(entry)

    def labels(self):
        return {entry.parameter: entry.label for entry in self._entries}

    def _hook(self, entry):
        parameter = entry.parameter
        wire_dtype(parameter)
        # Objects that the hook references live as long as the model.
        exchange, number = weakref.ref(self), entry.number

        def ready(*_):
            living = exchange()
            if living is not None:
                living.ready(number)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(ready))
        else:
            with torch.enable_grad():
                entry.node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            self._hooks.append(entry.node.register_hook(ready))
        entry.hooked = True

    def _participants(self):
        """The entries that take part. Users freeze and unfreeze parameters between two steps, on
        all ranks alike.
        """
        entries = [entry for entry in self._entries if entry.parameter.requires_grad]
        if entries != self._adopted:
            for entry in entries:
                if not entry.hooked:
                    self._hook(entry)
            self.way.adopt(entries)
            self._adopted = entries
        return self._adopted

    # ---- the backward pass ----

    def ready(self, number):
        """Called when the gradient of this parameter is complete for this backward pass."""
        with self._lock:
            entry = self._entries[number]
            if self.paused or entry.parameter.grad is None or not entry.parameter.requires_grad:
                return
            self._leave_former_job()
            if entry in self._open:
                raise AssertionError(
                    "%r got a gradient in more than backward_passes_per_step=%d backward passes since "
                    "the last step; call step() in time, or give DistributedOptimizer as many passes "
                    "as you make" % (entry.label, self.passes_per_step)
                )
            self.synchronized = False
            entry.passes += 1
            if entry.passes >= self.passes_per_step:
                self._guarded(self._start, entry)

    def _start(self, entry):
        if not self._open:
            self._participants()
            if self._number is not None:
                control.announce(self._number)
        parameter = entry.parameter
        empty = parameter.grad is None
        if empty:
            parameter.grad = entry.no_gradient()
        elif parameter.grad.layout != torch.strided:
            entry.sparse = (parameter.grad.sparse_dim(), self._sparse_as_dense)
            if self._sparse_as_dense:
                parameter.grad = parameter.grad.to_dense()
            elif not self.way.takes_sparse:
                raise TypeError(
                    "the gradient of %r is sparse, which a compression scheme does not take; give "
                    "DistributedOptimizer sparse_as_dense=True" % entry.label
                )
        else:
            entry.sparse = None
        self.way.start(entry, parameter.grad, empty)
        self._open.add(entry)

    # ---- the step ----

    def close(self):
        """Starts the missing gradients; returns this step's exchanges. The caller calls their finish()."""
        with self._lock:
            self._leave_former_job()
            return self._guarded(self._close)

    def _close(self):
        for one in self.way.started():
            one.check()
        for entry in self._participants():
            if entry not in self._open:
                self._start(entry)
        started = self.way.started()
        self._reset()
        return started

    def synchronize(self):
        """Returns when all gradients are averages."""
        if self.synchronized and not self._open:
            return
        for one in self.close():
            one.finish()
        self.synchronized = True

    def under_way(self):
        self._leave_former_job()
        return bool(self._open)

    def restart(self):
        """Resets the counts of gradients after the gradients were cleared."""
        self._reset()
        self.synchronized = False

    def _guarded(self, function, *arguments):
        # After an error no state of the step is left, so that the next step can begin.
        try:
            return function(*arguments)
        except BaseException:
            self._reset()
            raise

    def _reset(self):
        self._open.clear()
        self.way.clear()
        for entry in self._entries:
            entry.passes = 0

    def _leave_former_job(self):
        """Resets the exchange if this process has left its former job, whose rounds will never end."""
        if self._context != _core.context():
            self._context = _core.context()
            self._reset()

    # ---- join ----

    def prepare_to_join(self):
        if self.under_way():
            raise RuntimeError(
                "join() was called between backward() and step() of a DistributedOptimizer; finish the "
                "step first"
            )
        self.way.check_join()
        self.restart()

    def start_without_gradients(self):
        """Takes part in a step with zeros; returns handles whose results are not needed."""
        return [self.way.start_without_gradients(entry) for entry in self._participants()]
