"""DistributedOptimizer: any optimizer, with gradients averaged over all ranks."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._core import Average
from ._buckets import Buckets
from ._exchange import Exchange, Singles
from . import _sets
from ._adasum import adasum_optimizer
from ._exact import Adasum
from ._optimizers import OwnGradients, as_subclass, labels_of, unnamed
from ._reduce import AnyOp, chosen_op
from ._sets import ProcessSet
from .compression import Compression, Scheme
from .compression.cast import Compressor, wire_format_of

# At run time the class is made for each optimizer: see as_subclass.
if TYPE_CHECKING:
    _Base = Optimizer
else:
    _Base = object


class Distributed(_Base):
    """The methods that DistributedOptimizer() adds to the class of the given optimizer."""

    addend_mixin = True
    _addend: Exchange
    _addend_synchronizes: bool
    _addend_scheme: Scheme | None

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Waits until all gradients are averages over all ranks, and makes the optimizer's step.

        A closure's gradients are averaged whenever the optimizer calls it. The loss that it returns
        is this rank's own: for an optimizer that decides by the loss (LBFGS), return the average
        over all ranks.
        """
        exchange = self._addend
        if not self._addend_synchronizes:
            self._addend_check_synchronized()
        elif closure is not None:
            closure = self._addend_averaging(closure)
        elif exchange.synchronized and not exchange.under_way():
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): the gradients are averages already, and are not averaged again"
            )
        else:
            exchange.synchronize()
        with self._addend_stepping():
            arguments = () if closure is None else (closure,)
            result = super().step(*arguments, **options)
        exchange.synchronized = False
        return result

    # torch.optim wraps the step of every class in its profiler's and hooks' calls, once. The step
    # of the user's class, which is called from here, already has them.
    step.hooked = True  # type: ignore[attr-defined]

    def _addend_check_synchronized(self):
        if self._addend.under_way():
            raise AssertionError(
                "step() within skip_synchronize() would use gradients that are not averages yet; call "
                "optimizer.synchronize() before it"
            )

    def _addend_averaging(self, closure):
        def averaging():
            self._addend.synchronized = False
            with torch.enable_grad():
                loss = closure()
            self._addend.synchronize()
            return loss

        return averaging

    def _addend_stepping(self):
        if self._addend_scheme is None:
            return contextlib.nullcontext()
        return self._addend_scheme.stepping(self, self._addend.labels())

    @property
    def _parameter_names(self) -> dict[Tensor, str]:
        """As Horovod's, which scripts read."""
        return self._addend.labels()

    def synchronize(self) -> None:
        """Waits until all gradients are averages: for work before the step, such as clipping.

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        """
        self._addend.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() uses the gradients unchanged. Call synchronize() before it."""
        self._addend_synchronizes = False
        try:
            yield
        finally:
            self._addend_synchronizes = True

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """As the optimizer's own; raises an error while gradients are being averaged."""
        self._addend_check_zero_grad()
        return super().zero_grad(*arguments, **options)

    def _addend_check_zero_grad(self):
        if self._addend.under_way():
            raise AssertionError(
                "zero_grad() between backward() and step() would clear gradients that are being "
                "averaged; call it after step(), or before backward()"
            )
        self._addend.restart()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; call it on all ranks. The parameters are named by their position."""
        super().add_param_group(param_group)
        last = len(self.param_groups) - 1
        for place, parameter in enumerate(self.param_groups[last]["params"]):
            self._addend.add(parameter, unnamed(last, place))

    def __reduce_ex__(self, protocol):
        # A copy, and an object loaded from a pickle, is an optimizer of the user's class: it has
        # parameters of its own, which no other rank knows.
        order = type(self).__mro__
        kind = order[order.index(Distributed) + 1]
        return object.__new__, (kind,), self.__getstate__()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes whose gradients each rank adds up before the average."""
        if self._addend.under_way():
            raise AssertionError("backward_passes_per_step cannot change between backward() and step()")
        self._addend.passes_per_step = _checked_passes(passes)
        self._addend.restart()


def DistributedOptimizer(  # pylint: disable=invalid-name
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressor | Scheme = Compression.none,
    backward_passes_per_step: int = 1,
    op: AnyOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet | None = None,
) -> Distributed | OwnGradients:
    """Returns an optimizer of the class of `optimizer`, which it replaces, that steps alike on all
    ranks.

    A parameter's gradient is pushed as soon as the backward pass has made it, and step() waits for
    all gradients. All ranks make their optimizers in the same order. Every parameter that requires
    a gradient takes part in every step, with zeros where a rank has no gradient.

    named_parameters           model.named_parameters(): the names for agreement between ranks and in
                               errors; without it the position in param_groups names a parameter
    compression                Compression.fp16 or bf16, any object with compress(tensor) and
                               decompress(tensor, context), or a compression.Scheme
    backward_passes_per_step   the number of gradients that each rank adds up before the average
    op                         Average, or addend.torch.Sum, Min, Max, Product; Adasum combines the
                               changes of the weights instead of gradients
    gradient_predivide_factor  divides gradients before the average, and multiplies them after it
    sparse_as_dense            sparse gradients (torch.nn.Embedding(sparse=True)) are summed as dense
                               ones, and are sparse again afterwards; otherwise every rank receives
                               the elements of all
    process_set                only its ranks take part in the steps; on others the optimizer steps alone
    num_groups, groups         checked, and without effect: small tensors travel together anyway

    Mixed precision: scaler.scale(loss).backward(); optimizer.synchronize();
    scaler.unscale_(optimizer); with optimizer.skip_synchronize(): scaler.step(optimizer). An
    infinity on any rank becomes an infinity on all ranks.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError("DistributedOptimizer takes a torch.optim.Optimizer, not %r" % (optimizer,))
    if isinstance(optimizer, Distributed):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if isinstance(process_set, ProcessSet) and process_set.process_set_id is not None and not process_set.included():
        return as_subclass(optimizer, OwnGradients)
    members = _sets.chosen(process_set)
    op = chosen_op(None, op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=Average, not %r" % op)
    if gradient_predivide_factor <= 0:
        raise ValueError("gradient_predivide_factor must be above 0, not %r" % gradient_predivide_factor)
    _check_groups(num_groups, groups)
    passes = _checked_passes(backward_passes_per_step)
    labels = labels_of(optimizer, named_parameters)
    if op == Adasum:
        if isinstance(compression, Scheme) or wire_format_of(compression) is not None:
            raise ValueError("op=Adasum takes Compression.fp16 or bf16, and no compression scheme")
        return adasum_optimizer(optimizer, labels, compression, members)
    make_way = _way(compression, op, gradient_predivide_factor, members)

    made = as_subclass(optimizer, Distributed)
    made._addend = Exchange(make_way, passes, sparse_as_dense, members)
    made._addend_synchronizes = True
    made._addend_scheme = compression if isinstance(compression, Scheme) else None
    for parameter, label in labels.items():
        made._addend.add(parameter, label)
    return made


def _way(compression, op, predivide_factor, process_set):
    """A function that makes Singles or Buckets from the prefix of its tensors' names."""
    if isinstance(compression, Scheme):
        if op != Average or predivide_factor != 1.0:
            raise ValueError("a compression scheme averages: op and gradient_predivide_factor have no place")
        if process_set is not _sets.global_process_set:
            raise NotImplementedError("a compression scheme takes all ranks: give no process_set with it")
        return lambda prefix: Buckets(compression, prefix)
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            "compression must have compress(tensor) and decompress(tensor, context), or be an object of "
            "a compression.Scheme, not %r" % (compression,)
        )
    return lambda prefix: Singles(op, compression, predivide_factor, process_set)


def _checked_passes(passes: object) -> int:
    if not isinstance(passes, int) or passes < 1:
        raise ValueError("backward_passes_per_step must be a whole number of at least 1, not %r" % (passes,))
    return passes


def _check_groups(num_groups, groups):
    if not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError("num_groups must be a whole number of at least 0, not %r" % (num_groups,))
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return
    if not isinstance(groups, (list, tuple)) or not all(isinstance(g, (list, tuple)) for g in groups):
        raise ValueError("groups must be a number or a list of lists of parameters, not %.80r" % (groups,))
    members = [parameter for group in groups for parameter in group]
    if not all(torch.is_tensor(one) for one in members):
        raise ValueError("groups must hold parameters only")
    if len({id(one) for one in members}) < len(members):
        raise ValueError("a parameter is in two places of groups")
