"""Addend for PyTorch, under Horovod's names.

    import addend.torch as hvd                      # was: import horovod.torch as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

or, with DistributedDataParallel:

    dist.init_process_group("gloo")      # DDP needs a process group for its own construction
    addend.torch.init()                  # joins the job; the gradients go this way
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)

Everything else of the training script stays as it is. docs/pytorch.md says the rest.
"""

from .. import barrier, init, is_initialized, local_rank, local_size, node_rank, nodes_present
from .. import nodes_waiting, num_nodes, rank, shutdown, size, statistics
from .. import node_rank as cross_rank
from .. import num_nodes as cross_size
from .._core import Average, Max, Min, Sum
from .._errors import Error, MismatchError, PeerLostError, StalledError, WaitTimeoutError
from ._broadcast import (
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ._ddp import HookState, ddp_comm_hook
from ._elastic import ElasticState
from ._reduce import (
    Adasum,
    Product,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    declare,
    global_process_set,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
    synchronize,
)
from .compression import Compression
