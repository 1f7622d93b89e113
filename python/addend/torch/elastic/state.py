"""The state of an elastic training: saved by commits, restored after failures, the same on all ranks."""

from __future__ import annotations

import copy
from typing import Any, Callable, Iterable

import torch

from ... import nodes_present, nodes_waiting, num_nodes, rank, size
from .._broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .._elastic import largest
from .sampler import ElasticSampler


class HostsUpdatedInterrupt(RuntimeError):
    """Nodes wait to take part: elastic.run joins the job anew, with them."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("nodes have come back")
        self.skip_sync = skip_sync


class State:
    """What elastic.run asks of a state. Subclasses have save(), restore() and sync().

    `root`: within sync(), the rank whose state all take: of those with the most commits the first.
    `commits`: the number of commits so far.
    """

    def __init__(self) -> None:
        self.root = 0
        self.commits = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Functions to call when the job was joined again, before sync()."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, in this process's memory. All ranks call it between the same two steps.

        HostsUpdatedInterrupt: nodes wait; elastic.run takes them in.
        """
        self.save()
        self.commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt, on all ranks alike, if missing nodes have come back."""
        back = nodes_waiting() > 0 and nodes_present() + nodes_waiting() >= num_nodes()
        if largest(int(back)):
            raise HostsUpdatedInterrupt

    def find_root(self) -> None:
        """Sets `root`; the state there is the last commit, or the beginning."""
        # A single number that orders by commits, and then by rank.
        most = largest(self.commits * size() + size() - 1 - rank())
        self.root = size() - 1 - most % size()
        self.commits = most // size()

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the job was joined again, before the callbacks."""


class ObjectState(State):
    """Values by name, which are attributes."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._saved = dict(values)
        self._set()

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        self._set()

    def sync(self) -> None:
        self.find_root()
        self._take()

    def _take(self) -> None:
        if self._saved:
            self._saved = broadcast_object({name: getattr(self, name) for name in self._saved}, self.root, "elastic")
            self._set()

    def _set(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))


class StateHandler:
    """Saves, restores and gives to all ranks a value of a kind. sync() takes the state of `root`."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.root = 0

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # load_state_dict() may keep the tensors that it is given.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """Of a torch.nn.Module."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), self.root)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Of a torch.optim.Optimizer."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, self.root)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Of an ElasticSampler."""

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), self.root, "elastic"))
        self.save()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Pairs of a type and the handler of its values, the first that fits."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """A model, an optimizer and any other values, as attributes: further models, optimizers and
    ElasticSamplers by their state_dict(), the others as objects.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        self._handlers: dict[str, StateHandler] = {}
        objects = {}
        for name, value in {"model": model, "optimizer": optimizer, **values}.items():
            kind = next((handler for one, handler in _registry if isinstance(value, one)), None)
            if kind is None:
                objects[name] = value
            else:
                self._handlers[name] = kind(value)
        super().__init__(**objects)
        for name, handler in self._handlers.items():
            object.__setattr__(self, name, handler.value)

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        self.find_root()
        for handler in self._handlers.values():
            handler.root = self.root
            handler.sync()
        self._take()

    def reset(self) -> None:
        # The ranks may be others now, in number or place.
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
