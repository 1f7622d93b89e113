"""Every rank's tensor, on every rank."""

import torch

from .. import _core
from .. import rank, size
from ._handle import Handle
from ._tensors import check_tensor, on_host


def gather_async(tensor, name, priority=0):
    """Starts the exchange of one tensor of each rank, all of one shape and dtype.

    The result has one dimension more, of size(): result[i] is rank i's, byte for byte. Its tensors
    stay declared, one per rank under `name`/: for what is gathered again and again.
    """
    check_tensor(tensor)
    own, ranks = rank(), size()
    values = on_host(tensor, tensor.dtype)
    # Bytes travel as int32, whatever they mean. Every rank's are a broadcast with itself as root:
    # a rank sends its own part only.
    used = values.numel() * values.element_size()
    words = -(-used // 4)
    source = torch.zeros(words, dtype=torch.int32)
    if used > 0:
        source.view(torch.uint8)[:used] = values.reshape(-1).view(torch.uint8)
    room = torch.empty((ranks, words), dtype=torch.int32)
    rounds = []
    for i in range(ranks):
        declared = _core.declare(
            "%s/%d" % (name, i), (words,), _core.DTYPE_CODES["int32"], _core.BROADCAST
        )
        address = source.data_ptr() if i == own else None
        rounds.append(
            _core.Handle(declared, address, room[i].data_ptr(), priority, (source, room))
        )

    def finish():
        flat = torch.empty((ranks, values.numel()), dtype=tensor.dtype)
        if used > 0:
            flat.view(torch.uint8)[:] = room.view(torch.uint8)[:, :used]
        return flat.reshape((ranks, *tensor.shape)).to(tensor.device)

    return Handle(rounds, finish)
