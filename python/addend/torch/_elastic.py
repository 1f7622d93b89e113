"""Training that continues when nodes are lost, and takes the nodes back after a restart."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from .. import Max, init, nodes_present, nodes_waiting, num_nodes, rank, shutdown, size
from ._broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._tensors import push_tensor

_VOTE = "addend.elastic"


class ElasticState:
    """The state that a rank shares with the other ranks: model, optimizer, and any values of yours.

        addend.torch.init()
        state = addend.torch.ElasticState(model, optimizer, step=0)
        state.sync()                            # the same call on the first start and on a restart
        while state.step < steps:
            train_one_step(model, optimizer)
            state.step += 1
            state.commit()                      # here, between two steps, nodes may come back

    The agents need --on-node-loss=shrink. While a node is missing, averages are over the present
    nodes. `step` counts the trained steps: the rank with the highest step gives its state to the
    others.
    """

    def __init__(
        self,
        model: Module | None = None,
        optimizer: Optimizer | None = None,
        step: int = 0,
        **values: Any,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step = step
        self._names = ["step", *values]
        for name, value in values.items():
            if hasattr(self, name):
                raise ValueError("ElasticState has a %r of its own: choose another name" % name)
            setattr(self, name, value)

    def sync(self) -> None:
        """Gives every rank the state of the lowest rank among the ranks with the highest step."""
        # A single number that orders by step, and then by rank.
        most = largest(self.step * size() + size() - 1 - rank())
        root = size() - 1 - most % size()
        if self.model is not None:
            broadcast_parameters(self.model.state_dict(), root)
        if self.optimizer is not None:
            broadcast_optimizer_state(self.optimizer, root)
        mine = {name: getattr(self, name) for name in self._names}
        for name, value in broadcast_object(mine, root, "state").items():
            setattr(self, name, value)

    def commit(self) -> bool:
        """Admits waiting nodes and syncs with them. All ranks call it between two steps.

        Costs a round of eight bytes. Returns whether nodes have come back: all missing nodes at
        once, since a job begins with all of its nodes.
        """
        if not largest(int(nodes_waiting() > 0 and nodes_present() + nodes_waiting() >= num_nodes())):
            return False
        shutdown()
        init()
        self.sync()
        return True


def largest(number: int) -> int:
    """The largest of all ranks' numbers, so that all ranks decide alike."""
    value = torch.tensor([number])
    push_tensor(value, value, _VOTE, Max, 0).wait()
    return int(value)
