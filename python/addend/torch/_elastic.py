"""Training that goes on when nodes are lost, and takes them back when they have been restarted."""

import torch

from .. import Max, init, nodes_present, nodes_waiting, num_nodes, rank, shutdown, size
from ._broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._tensors import push_tensor

_VOTE = "addend.elastic"


class ElasticState:
    """What a rank needs to go on where the others are: model, optimizer, and any values of yours.

        addend.torch.init()
        state = addend.torch.ElasticState(model, optimizer, step=0)
        state.sync()                            # the same on the first start and on a restart
        while state.step < steps:
            train_one_step(model, optimizer)
            state.step += 1
            state.commit()                      # here, between two steps, nodes may come back

    The agents need --on-node-loss=shrink. While a node is missing, averages are over those present.
    `step` counts what has been trained: who has most of it gives its state to the others.
    """

    def __init__(self, model=None, optimizer=None, step=0, **values):
        self.model = model
        self.optimizer = optimizer
        self.step = step
        self._names = ["step", *values]
        for name, value in values.items():
            if hasattr(self, name):
                raise ValueError("ElasticState has a %r of its own: choose another name" % name)
            setattr(self, name, value)

    def sync(self):
        """Gives every rank the state of the lowest rank among those that have trained longest."""
        # One number that orders by step, and then by rank.
        most = _largest(self.step * size() + size() - 1 - rank())
        root = size() - 1 - most % size()
        if self.model is not None:
            broadcast_parameters(self.model.state_dict(), root)
        if self.optimizer is not None:
            broadcast_optimizer_state(self.optimizer, root)
        mine = {name: getattr(self, name) for name in self._names}
        for name, value in broadcast_object(mine, root, "state").items():
            setattr(self, name, value)

    def commit(self):
        """To be called by all ranks between two steps: lets nodes in that wait, and syncs with them.

        Costs one round of eight bytes. Returns whether nodes have come back: all that are missing,
        since a job begins with all of its nodes.
        """
        if not _largest(int(nodes_waiting() > 0 and nodes_present() + nodes_waiting() >= num_nodes())):
            return False
        shutdown()
        init()
        self.sync()
        return True


def _largest(number):
    """Of all ranks' numbers, so that all ranks decide alike."""
    value = torch.tensor([number])
    push_tensor(value, value, _VOTE, Max, 0).wait()
    return int(value)
