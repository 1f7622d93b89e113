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

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError(
        "addend.torch needs PyTorch, which cannot be imported here (%s); addend itself sums NumPy arrays "
        "without it" % _error
    ) from None

from .. import init, is_initialized, local_rank, local_size, node_rank, nodes_present
from .. import nodes_waiting, num_nodes, rank, shutdown, size, statistics
from .. import node_rank as cross_rank
from .. import num_nodes as cross_size
from .._core import Accumulate, Average, Max, Min, Sum
from .._errors import Error, MismatchError, PeerLostError, StalledError, WaitTimeoutError
from ._async import AsyncOptimizer
from ._broadcast import (
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ._cross_barrier import CrossBarrier
from ._ddp import HookState, bf16_compress_hook, ddp_comm_hook, fp16_compress_hook
from ._elastic import ElasticState
from ._gather import (
    allgather,
    allgather_async,
    allgather_object,
    grouped_allgather,
    grouped_allgather_async,
)
from ._join import barrier, join
from ._optimizer import DistributedOptimizer
from ._reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    declare,
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
from ._replicas import allreduce_replicas_, allreduce_replicas_async_, replica_hook
from ._shadow import shadow
from ._unsupported import (
    Adasum,
    ProcessSet,
    Product,
    SyncBatchNorm,
    add_process_set,
    alltoall,
    alltoall_async,
    ccl_built,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_reducescatter,
    grouped_reducescatter_async,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    reducescatter,
    reducescatter_async,
    remove_process_set,
    rocm_built,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
)
from .compression import CoarseSparse, Compression, OneBit, RandomK, TopK
