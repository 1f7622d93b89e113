"""Optimizers of a user's class with more methods, and the names of their parameters."""

import collections
import contextlib
from typing import TYPE_CHECKING, Iterator

import torch
from torch.optim import Optimizer

# At run time a class is made for each optimizer: see as_subclass.
if TYPE_CHECKING:
    _Base = Optimizer
else:
    _Base = object


class OwnGradients(_Base):
    """The methods of a DistributedOptimizer where each rank keeps its own gradients."""

    addend_mixin = True

    def synchronize(self) -> None:
        """Does nothing: gradients are each rank's own."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Does nothing: gradients are each rank's own, and may be clipped before step()."""
        yield


def as_subclass(optimizer, mixin):
    """A new object with the optimizer's state and param_groups, of its class with `mixin` before it."""
    kind = type(optimizer)
    made = object.__new__(type(kind.__name__, (mixin, kind), {}))
    made.__dict__.update(optimizer.__dict__)
    # An earlier learning rate scheduler has stored a step() in the object; that step() belongs to
    # the former optimizer.
    made.__dict__.pop("step", None)
    return made


def unnamed(group, place):
    return "group%d.%d" % (group, place)


def labels_of(optimizer, named_parameters):
    """{parameter: name} of the optimizer's parameters, in the model's order if it is known."""
    places = {
        parameter: unnamed(g, i)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        return places
    given = list(named_parameters)
    names = {}
    for pair in given:
        if not (isinstance(pair, tuple) and len(pair) == 2 and torch.is_tensor(pair[1])):
            raise ValueError(
                "named_parameters must be pairs of a name and a parameter, as model.named_parameters() "
                "gives them, but one is %.80r" % (pair,)
            )
        names.setdefault(pair[1], pair[0])
    doubles = [name for name, times in collections.Counter(name for name, _ in given).items() if times > 1]
    if doubles:
        raise ValueError("named_parameters has names twice: %s" % ", ".join(map(repr, doubles)))
    missing = [place for parameter, place in places.items() if parameter not in names]
    if missing:
        raise ValueError(
            "named_parameters does not name %d of the optimizer's parameters: %s"
            % (len(missing), ", ".join(missing))
        )
    return {parameter: name for parameter, name in names.items() if parameter in places}
