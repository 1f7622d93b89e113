"""Addend: sums gradients on the CPUs and links that a cluster is not using.

    import addend
    addend.init()                                  # as torchrun's variables say
    mean = addend.push_pull(gradient, "gradient")  # a NumPy array, averaged over all ranks
    addend.shutdown()

Every function may be called from any thread. Errors are addend.Error and its subclasses; once the
job has failed, every pending and later call raises the job's error. For PyTorch see addend.torch.
"""

from __future__ import annotations

from ._core import Accumulate, Average, Max, Min, Sum
from ._core import init, is_initialized, shutdown, statistics, undeclare
from ._core import lib as _lib
from ._core import place as _place
from ._errors import Error, MismatchError, PeerLostError, StalledError, WaitTimeoutError
from ._numpy import (
    barrier,
    broadcast,
    declare,
    empty,
    poll,
    push_pull,
    push_pull_async,
    synchronize,
)

__version__: str = _lib.addend_version().decode()

__all__ = [
    "Accumulate",
    "Average",
    "Error",
    "Max",
    "Min",
    "MismatchError",
    "PeerLostError",
    "StalledError",
    "Sum",
    "WaitTimeoutError",
    "barrier",
    "broadcast",
    "declare",
    "empty",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "node_rank",
    "nodes_present",
    "nodes_waiting",
    "num_nodes",
    "poll",
    "push_pull",
    "push_pull_async",
    "rank",
    "shutdown",
    "size",
    "statistics",
    "synchronize",
    "undeclare",
]


def rank() -> int:
    """This process's number in the job, from 0."""
    return _place(_lib.addend_rank)


def size() -> int:
    """The number of ranks in the job."""
    return _place(_lib.addend_size)


def local_rank() -> int:
    """This process's number on its node, from 0."""
    return _place(_lib.addend_local_rank)


def local_size() -> int:
    """The number of ranks on this node."""
    return _place(_lib.addend_local_size)


def node_rank() -> int:
    """The number of this node in the job, from 0."""
    return _place(_lib.addend_node_rank)


def num_nodes() -> int:
    """The number of nodes in the job."""
    return _place(_lib.addend_num_nodes)


def nodes_present() -> int:
    """The number of nodes that take part now: all, unless the agents run with --on-node-loss=shrink."""
    return _place(_lib.addend_nodes_present)


def nodes_waiting() -> int:
    """The number of nodes that were lost, have restarted, and wait for all ranks to shut down and
    call init() again.

    Ranks may see a change at different times; addend.torch.ElasticState makes them agree.
    """
    return _place(_lib.addend_nodes_waiting)
