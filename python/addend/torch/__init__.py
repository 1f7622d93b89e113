"""Addend for PyTorch, under Horovod's names.

    import addend.torch as hvd                      # was: import horovod.torch as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

or, with DistributedDataParallel:

    dist.init_process_group("gloo")      # DDP needs a process group for its own construction
    addend.torch.init()                  # joins the job, which carries the gradients
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)

The rest of the training script stays unchanged. docs/pytorch.md is the guide.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError(
        "addend.torch needs PyTorch, which cannot be imported here (%s); addend itself sums NumPy arrays "
        "without it" % _error
    ) from None

import addend_backend as _addend_backend

from .. import is_initialized, local_rank, local_size, node_rank, nodes_present
from .. import nodes_waiting, num_nodes, rank, shutdown, size, statistics
from .. import node_rank as cross_rank
from .. import num_nodes as cross_size
from .._core import Accumulate, Average, Max, Min, Sum
from .._errors import Error, MismatchError, PeerLostError, StalledError, WaitTimeoutError
from . import elastic
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
from ._builds import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ._cross_barrier import CrossBarrier
from ._ddp import HookState, bf16_compress_hook, ddp_comm_hook, fp16_compress_hook
from ._elastic import ElasticState
from ._exact import Adasum, Product
from ._gather import (
    allgather,
    allgather_async,
    allgather_object,
    grouped_allgather,
    grouped_allgather_async,
)
from ._handle import Handle
from ._init import init
from ._join import barrier, join
from ._optimizer import DistributedOptimizer
from ._push_pull import (
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from ._reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    poll,
    synchronize,
)
from ._replicas import allreduce_replicas_, allreduce_replicas_async_, replica_hook
from ._scatter import (
    alltoall,
    alltoall_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from ._sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ._shadow import shadow
from ._sparse import sparse_allreduce_async
from ._sync_batch_norm import SyncBatchNorm
from ._timeline import start_timeline, stop_timeline
from .compression import CoarseSparse, Compression, OneBit, RandomK, TopK

_addend_backend.register()

HorovodInternalError = Error
"""Horovod's name for the error of every operation that failed."""

__all__ = [
    "Accumulate",
    "Adasum",
    "AsyncOptimizer",
    "Average",
    "CoarseSparse",
    "Compression",
    "CrossBarrier",
    "DistributedOptimizer",
    "ElasticState",
    "Error",
    "Handle",
    "HookState",
    "HorovodInternalError",
    "Max",
    "Min",
    "MismatchError",
    "OneBit",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "RandomK",
    "StalledError",
    "Sum",
    "SyncBatchNorm",
    "TopK",
    "WaitTimeoutError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_replicas_",
    "allreduce_replicas_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "bf16_compress_hook",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_comm_hook",
    "declare",
    "elastic",
    "fp16_compress_hook",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "node_rank",
    "nodes_present",
    "nodes_waiting",
    "num_nodes",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "replica_hook",
    "rocm_built",
    "shadow",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "synchronize",
]
