"""CrossBarrier: the next forward pass begins while the last layers' gradients are still on their way."""

import weakref

import torch

from ._exchange import Singles
from ._optimizer import Distributed, as_subclass


class _Pending:
    """A parameter's gradient under way, and how the optimizer is to use it."""

    def __init__(self, averaged, options):
        self.averaged = averaged
        self.options = options  # of its group, as they were when step() was called
        self.cleared = None  # set_to_none of a zero_grad() since


class Crossing:
    """What CrossBarrier() adds to the class of a DistributedOptimizer."""

    # Of each object: _crossing_pending {parameter: _Pending}, _crossing_calls (see _Calls),
    # _crossing_steps_left.

    def step(self, closure=None):
        """Notes the step; each parameter makes it when its module is next used."""
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

    step.hooked = True  # as in Distributed

    def synchronize(self):
        """Makes all steps that were noted."""
        self._crossing_apply_all()

    def skip_synchronize(self):
        raise NotImplementedError(
            "CrossBarrier never has all gradients at one time: to clip them, use the "
            "DistributedOptimizer without it"
        )

    def zero_grad(self, set_to_none=torch.optim.Optimizer.zero_grad.__defaults__[0]):
        """Clears the gradients; those of a step that was noted are cleared once they have been used."""
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
        """Waits for these parameters' gradients and makes the optimizer's step of them alone."""
        pending = [(p, self._crossing_pending.pop(p)) for p in parameters if p in self._crossing_pending]
        # What a step makes must be of use in training, also where an evaluation is what waits for it.
        with torch.inference_mode(False):
            for parameter, one in pending:
                now = parameter.grad
                one.averaged.check()
                one.averaged.finish()
                self._crossing_step({**one.options, "params": [parameter]})
                if now is not one.averaged.gradient:  # the model's zero_grad() has let go of it
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
    """Which module's call uses which parameters.

    A module uses its own, and those of modules below it that are not called themselves (as in
    torch.nn.MultiheadAttention): which those are shows the time before the first step.
    """

    def __init__(self, model):
        self._model = model
        self._called = set()
        self._uses = None  # module -> its parameters, once it is known

    def parameters_of(self, module):
        if self._uses is None:
            self._called.add(module)
            return []
        if not module.training:
            return module.parameters()  # it may go other ways than in training
        return self._uses.get(module, [])

    def without_a_call(self, parameters):
        """Those that no module's call comes before."""
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


def CrossBarrier(model, optimizer, num_steps=None):  # pylint: disable=invalid-name
    """An optimizer that replaces `optimizer`, a DistributedOptimizer of `model`, and waits for no step.

    step() only notes the step. In the next forward pass each module waits for the gradients of its own
    parameters, makes the optimizer's step of exactly these, and goes on: the gradients that come last
    in the backward pass, and are needed first, travel first. The weights have the same bits as
    without it.

    For optimizers that update every parameter by itself (SGD, Adam, ...) and keep nothing in their
    param_groups. The weights are up to date within a module's call, after synchronize(), in
    model.state_dict() and optimizer.state_dict(), and after step number `num_steps`, if it is given:
    whoever reads them elsewhere, or leaves the job (ElasticState.commit), calls synchronize() first.
    Clear gradients with the optimizer's zero_grad(), not with the model's.
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
    # The model may outlive the optimizer, and must not keep it alive.
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
