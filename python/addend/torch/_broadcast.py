"""One rank's tensors, parameters, optimizer state or any object, for all ranks."""

import io

import torch

from .. import _core
from .. import rank, size
from ._tensors import check_tensor

_PREFIX = "addend.broadcast/"


class _Broadcast:
    """One tensor's broadcast under way: its bytes travel as int32, whatever they mean."""

    def __init__(self, tensor, root_rank, name):
        check_tensor(tensor)
        self._tensor = tensor
        self._bytes = tensor.numel() * tensor.element_size()
        words = torch.zeros(-(-self._bytes // 4), dtype=torch.int32)
        self._words = words
        is_root = rank() == root_rank
        if is_root and self._bytes > 0:
            flat = tensor.detach().contiguous().reshape(-1)
            words.view(torch.uint8)[: self._bytes] = flat.view(torch.uint8)
        declared = _core.declare(
            _PREFIX + name, (words.numel(),), _core.DTYPE_CODES["int32"], _core.BROADCAST
        )
        address = words.data_ptr()
        self._handle = _core.Handle(declared, address if is_root else None, address, 0, words)

    def finish(self):
        """The root's values, in the tensor's shape."""
        _core.finish_once(self._handle)
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


def broadcast_object(value, root_rank=0, name="object"):
    """Returns the root's object on every rank: what torch.save takes. Others' `value` is ignored.

    The ranks of a job trust each other: loading an object can run code of the root's choice.
    """
    _check_root(root_rank)
    content = torch.empty(0, dtype=torch.uint8)
    if rank() == root_rank:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        content = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    length = broadcast(torch.tensor([content.numel()]), root_rank, name + "/bytes")
    if rank() != root_rank:
        content = torch.empty(int(length), dtype=torch.uint8)
    content = broadcast(content, root_rank, name)
    return torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=False)


def broadcast_optimizer_state(optimizer, root_rank=0):
    """Gives every rank the root's optimizer state: hyperparameters, momenta, step counts."""
    state = broadcast_object(optimizer.state_dict(), root_rank, "optimizer")
    if rank() != root_rank:
        optimizer.load_state_dict(state)
