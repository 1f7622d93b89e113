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

from . import _core, barrier
from . import init, is_initialized, local_rank, local_size, node_rank, num_nodes, rank, shutdown
from . import size, statistics
from ._core import Average, Max, Min, Sum
from ._ddp import HookState, ddp_comm_hook
from ._errors import Error, MismatchError, PeerLostError, StalledError, WaitTimeoutError
from ._tensors import check_tensor, dtype_code, push_tensor

__all__ = [
    "Average",
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
    "broadcast_parameters",
    "ddp_comm_hook",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "node_rank",
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

_BROADCAST = "addend.broadcast/"


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


class _Broadcast:
    """One tensor's broadcast under way: its bytes travel as int32, whatever they mean."""

    def __init__(self, tensor, root_rank, name):
        check_tensor(tensor)
        self._tensor = tensor
        self._name = _BROADCAST + name
        self._bytes = tensor.numel() * tensor.element_size()
        words = torch.zeros(-(-self._bytes // 4), dtype=torch.int32)
        self._words = words
        is_root = rank() == root_rank
        if is_root and self._bytes > 0:
            flat = tensor.detach().contiguous().reshape(-1)
            words.view(torch.uint8)[: self._bytes] = flat.view(torch.uint8)
        declared = _core.declare(
            self._name, (words.numel(),), _core.DTYPE_CODES["int32"], _core.BROADCAST
        )
        address = words.data_ptr()
        self._handle = _core.Handle(declared, address if is_root else None, address, 0, words)

    def finish(self):
        """The root's values, in the tensor's shape."""
        self._handle.wait()
        _core.undeclare(self._name)
        flat = torch.empty(self._tensor.numel(), dtype=self._tensor.dtype)
        if self._bytes > 0:
            flat.view(torch.uint8)[:] = self._words.view(torch.uint8)[: self._bytes]
        return flat.reshape(self._tensor.shape)

    def finish_in_place(self):
        with torch.no_grad():
            self._tensor.copy_(self.finish())


def _check_root(root_rank):
    if not 0 <= root_rank < size():
        raise ValueError("root_rank %d is no rank of this job of %d" % (root_rank, size()))


def broadcast(tensor, root_rank, name):
    """Returns the root's tensor on every rank; shape and dtype must be the same on all of them."""
    _check_root(root_rank)
    return _Broadcast(tensor, root_rank, name).finish()


def broadcast_(tensor, root_rank, name):
    """As broadcast, into `tensor` itself, which is returned."""
    _check_root(root_rank)
    _Broadcast(tensor, root_rank, name).finish_in_place()
    return tensor


def broadcast_parameters(params, root_rank=0):
    """Gives every rank the root's values: of a state_dict(), or of named_parameters()."""
    _check_root(root_rank)
    entries = list(params.items()) if hasattr(params, "items") else list(params)
    for entry in entries:
        if not (isinstance(entry, tuple) and len(entry) == 2 and torch.is_tensor(entry[1])):
            raise TypeError(
                "broadcast_parameters takes a state_dict() or named_parameters(), pairs of a name "
                "and a tensor, but one entry is %.80r" % (entry,)
            )
    # All are started before the first is awaited, so that they share one trip.
    started = [_Broadcast(tensor, root_rank, "parameters/" + name) for name, tensor in entries]
    for one in started:
        one.finish_in_place()
