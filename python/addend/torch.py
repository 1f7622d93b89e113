"""Push-pull of PyTorch tensors, and the communication hook of DistributedDataParallel.

    import torch.distributed as dist
    import addend.torch

    dist.init_process_group("gloo")      # DDP needs a process group for its own construction
    addend.torch.init()                  # joins the job; the gradients go this way
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)

Everything else of the training script stays as it is. Tensors are on the CPU for now.
"""

import torch

from . import barrier, init, is_initialized, local_rank, local_size, node_rank, nodes_present
from . import nodes_waiting, num_nodes, rank, shutdown, size, statistics
from ._broadcast import (
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ._core import Average, Max, Min, Sum
from ._ddp import HookState, ddp_comm_hook
from ._elastic import ElasticState
from ._errors import Error, MismatchError, PeerLostError, StalledError, WaitTimeoutError
from ._tensors import dtype_code, push_tensor

__all__ = [
    "Average",
    "ElasticState",
    "Error",
    "HookState",
    "Max",
    "Min",
    "MismatchError",
    "PeerLostError",
    "StalledError",
    "Sum",
    "WaitTimeoutError",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_comm_hook",
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
]


def push_pull_async(tensor, name, op=Average, priority=0):
    """Starts one round of the tensor `name` and returns a handle at once.

    Every rank contributes a tensor of the same shape and dtype (float32, float64, float16, bfloat16,
    int32, int64). Larger priorities go first. The tensor must not change until the handle is done.
    """
    dtype_code(tensor)
    source = tensor.detach().contiguous()
    result = torch.empty_like(source)
    handle = push_tensor(source, result, name, op, priority)
    handle.result = result
    return handle


def synchronize(handle, timeout=None):
    """Waits for a handle and returns its result, or raises the reason why there is none."""
    handle.wait(timeout)
    return handle.result


def poll(handle):
    """True when the operation has ended, well or not."""
    return handle.done()


def push_pull(tensor, name, op=Average):
    """Sums (or averages, ...) `tensor` over all ranks; returns a new tensor."""
    return synchronize(push_pull_async(tensor, name, op))
