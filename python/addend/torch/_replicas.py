"""Replicas of models that are sharded inside a node: hybrid sharded data parallelism (HSDP).

A shard lives on one local rank of every node. For each local rank, the sum over that local rank's
shards of all nodes joins the replicas. A job sums over all of its ranks, so each shard is a tensor
of its own to which the other ranks of a node add nothing: that copies nothing, and a node sends
each of its shards once.
"""

from __future__ import annotations

import itertools
from typing import Callable

from torch import Tensor

from .. import _core, local_rank, local_size
from .._core import Average, Op
from ._handle import Handle
from ._tensors import check_op, on_host, wire_dtype

_instances = itertools.count()


def allreduce_replicas_async_(
    tensor: Tensor,
    name: str,
    op: Op = Average,
    priority: int = 0,
) -> Handle[Tensor]:
    """Starts the average (`op`: or sum, ...) of `tensor` over this local rank of all nodes, in
    place.

    The ranks of a node have shards of the same shape and dtype; every rank of the job takes part.
    Average takes floating types. It divides by the nodes whose shards are in the sum, even if some
    nodes are lost, and rounds once if local_size() is a power of two, else twice. Returns a handle.
    """
    dtype = wire_dtype(tensor)
    check_op(op)
    if op == Average and not tensor.is_floating_point():
        raise TypeError("the average of shards of %s is not defined: sum them, and divide" % tensor.dtype)
    own, ranks = local_rank(), local_size()
    room = on_host(tensor, dtype)  # the tensor itself if it can be sent
    code = _core.DTYPE_CODES[str(dtype).rpartition(".")[2]]
    rounds = []
    for i in range(ranks):
        declared = _core.declare("%s/%d" % (name, i), tuple(room.shape), code, int(op))
        # A rank with another shard adds nothing, and takes no copy of the result.
        address = room.data_ptr() if i == own else None
        rounds.append(_core.Handle(declared, address, address, priority, room))

    def finish():
        if op == Average and ranks > 1:
            # The sum was divided by all ranks of the nodes in it; only the nodes count here.
            room.mul_(ranks)
        if room.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(room)
        return tensor

    return Handle(rounds, finish)


def allreduce_replicas_(tensor: Tensor, name: str, op: Op = Average) -> Tensor:
    """allreduce_replicas_async_, and waits; returns `tensor`."""
    return allreduce_replicas_async_(tensor, name, op).wait()


def replica_hook(module_or_name: object) -> Callable[[Tensor], None]:
    """For FSDPModule.set_all_reduce_hook(hook): averages reduced gradients over the nodes.

        shape = (addend.torch.num_nodes(), addend.torch.local_size())
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])      # the ranks of this node
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(addend.torch.replica_hook(module))

    FSDP calls the hook with the gradients that a node's ranks have reduced and scattered among
    themselves, and the hook returns when the average has replaced them. A name must be the same on
    all ranks; for modules, ranks have to make their hooks in the same order.
    """
    if isinstance(module_or_name, str):
        name = module_or_name
    else:
        name = "addend.replicas/%d" % next(_instances)

    def hook(reduced):
        # Modules whose parameters are not all used in a step reduce fewer elements.
        allreduce_replicas_(reduced, "%s/%d %s" % (name, reduced.numel(), reduced.dtype))

    return hook
