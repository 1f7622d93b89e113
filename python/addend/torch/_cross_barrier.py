"""CrossBarrier: the next forward pass begins while the last layers' gradients are still being exchanged."""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any, Callable, NoReturn

import torch
from torch import Tensor
from torch.nn import Module

from ._exchange import Singles
from ._optimizer import Distributed
from ._optimizers import as_subclass

# At run time the class is made for each optimizer: see as_subclass.
if TYPE_CHECKING:
    _Base = Distributed
else:
    _Base = object

# Defaults to PyTorch's own default: False up to 1.13, then True. From 2.1 on the method is wrapped,
# so its __defaults__ do not show it.
_SET_TO_NONE = inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default


class _Pending:
    """A parameter's gradient under way, and the optimizer's options for it."""

    def __init__(self, averaged, options):
        self.averaged = averaged
        self.options = options  # the options of its group at the time of step()
        self.cleared = None  # set_to_none of a zero_grad() since that step


class Crossing(_Base):
    """The methods that CrossBarrier() adds to the class of a DistributedOptimizer."""

    addend_mixin = True
    _crossing_pending: dict[Tensor, _Pending]
    _crossing_calls: _Calls
    _crossing_steps_left: int | None

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Records the step; each parameter makes the step when its module is next used."""
        if closure is not None:
            raise NotImplementedError("CrossBarrier does not know when a closure's gradients are needed")
        self._crossing_apply_all()
        options = {
            parameter: _options(group) for group in self.param_groups for parameter in group["params"]
        }
        for averaged in self._addend.close():
            parameter = averaged.entry.parameter
            self._crossing_pending[parameter] = _Pending(averaged, options[parameter])
        self._crossing_apply(self._crossing_calls.without_a_call(self._crossing_pending))
        if self._crossing_steps_left is not None:
            self._crossing_steps_left -= 1
            if self._crossing_steps_left <= 0:
                self._crossing_apply_all()

    step.hooked = True  # type: ignore[attr-defined]  # as in Distributed

    def synchronize(self) -> None:
        """Makes all recorded steps."""
        self._crossing_apply_all()

    def skip_synchronize(self) -> NoReturn:
        raise NotImplementedError(
            "CrossBarrier never has all gradients at one time: to clip them, use the "
            "DistributedOptimizer without it"
        )

    def zero_grad(self, set_to_none=_SET_TO_NONE):
        """Clears the gradients; the gradients of a recorded step are cleared after the step is made."""
        self._addend_check_zero_grad()
        for group in self.param_groups:
            for parameter in group["params"]:
                pending = self._crossing_pending.get(parameter)
                if pending is not None:
                    pending.cleared = set_to_none
                elif parameter.grad is not None:
                    _clear(parameter, set_to_none)

    def state_dict(self):
        self._crossing_apply_all()
        return super().state_dict()

    def __getstate__(self):
        self._crossing_apply_all()
        return super().__getstate__()

    def load_state_dict(self, state_dict):
        self._crossing_apply_all()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group):
        self._crossing_apply_all()
        super().add_param_group(param_group)

    def _crossing_apply_all(self):
        self._crossing_apply(list(self._crossing_pending))

    def _crossing_apply(self, parameters):
        """Waits for these parameters' gradients and makes the optimizer's step for these parameters alone."""
        pending = [(p, self._crossing_pending.pop(p)) for p in parameters if p in self._crossing_pending]
        # The step's results must be usable in training, even if an evaluation triggers the step.
        with torch.inference_mode(False):
            for parameter, one in pending:
                now = parameter.grad
                one.averaged.check()
                one.averaged.finish()
                self._crossing_step({**one.options, "params": [parameter]})
                if now is not one.averaged.gradient:  # the model's zero_grad() has released it
                    parameter.grad = now
                elif one.cleared is not None:
                    _clear(parameter, one.cleared)

    def _crossing_step(self, group):
        latest, self.param_groups = self.param_groups, [group]
        try:
            super(Distributed, self).step()
        finally:
            self.param_groups = latest


def _options(group):
    return {
        key: value.clone() if torch.is_tensor(value) else value
        for key, value in group.items()
        if key != "params"
    }


def _clear(parameter, set_to_none):
    if set_to_none:
        parameter.grad = None
        return
    if parameter.grad.requires_grad:
        parameter.grad = parameter.grad.detach()
    parameter.grad.zero_()


class _Calls:
    """Maps each module's call to the parameters that it uses.

    A module uses its own parameters, and those of modules below it that are not called themselves
    (as in torch.nn.MultiheadAttention); calls before the first step show which modules are called.
    """

    def __init__(self, model):
        self._model = model
        self._called = set()
        self._uses = None  # module -> its parameters; None until the first step

    def parameters_of(self, module):
        if self._uses is None:
            self._called.add(module)
            return []
        if not module.training:
            return module.parameters()  # an evaluation may take other paths than training
        return self._uses.get(module, [])

    def without_a_call(self, parameters):
        """The parameters that no module's call precedes."""
        if self._uses is None:
            self._uses = {}
            self._assign(self._model, None)
        covered = {parameter for used in self._uses.values() for parameter in used}
        return [parameter for parameter in parameters if parameter not in covered]

    def _assign(self, module, user):
        if module in self._called:
            user = module
        if user is not None:
            self._uses.setdefault(user, []).extend(module.parameters(recurse=False))
        for child in module.children():
            self._assign(child, user)


def CrossBarrier(model: Module, optimizer: Distributed, num_steps: int | None = None) -> Crossing:  # pylint: disable=invalid-name
    """Returns an optimizer that replaces `optimizer`, a DistributedOptimizer of `model`; step()
    does not wait.

    step() only records the step. In the next forward pass each module waits for the gradients of
    its own parameters, makes the optimizer's step for exactly these, and continues: the gradients
    that come last in the backward pass, and are needed first, travel first. The weights have the
    same bits as without CrossBarrier.

    It suits optimizers that update every parameter by itself (SGD, Adam, ...) and keep no state in
    their param_groups. The weights are up to date within a module's call, after synchronize(), in
    model.state_dict() and optimizer.state_dict(), and after step number `num_steps`, if given. Call
    synchronize() before reading the weights elsewhere and before leaving the job
    (ElasticState.commit). Clear gradients with the optimizer's zero_grad(), not with the model's.
    """
    if not isinstance(optimizer, Distributed):
        raise TypeError("CrossBarrier takes the DistributedOptimizer of the model, not %r" % (optimizer,))
    if not isinstance(optimizer._addend.way, Singles):
        raise NotImplementedError(
            "CrossBarrier does not work with a compression scheme, which needs whole buckets"
        )
    made = as_subclass(optimizer, Crossing)
    made._crossing_pending = {}
    made._crossing_calls = _Calls(model)
    made._crossing_steps_left = num_steps
    # The model may outlive the optimizer; it must not keep the optimizer alive.
    reference = weakref.ref(made)

    def before_forward(module, _):
        living = reference()
        if living is not None:
            living._crossing_apply(living._crossing_calls.parameters_of(module))

    def after_state_dict(*_):
        # The tensors of a state_dict share the parameters' memory.
        living = reference()
        if living is not None:
            living.synchronize()

    for module in model.modules():
        module.register_forward_pre_hook(before_forward)
    model._register_state_dict_hook(after_state_dict)
    return made
