"""One round of one tensor: what every sum of tensors is made of."""

import torch

from ._handle import Handle
from ._tensors import can_receive, on_host, push_tensor, scaled, wire_dtype


def start_reduce(source, target, name, op, priority=0, prescale_factor=1.0, postscale_factor=1.0):
    """Starts `target` = `source` combined over all ranks, for dense tensors of one shape and dtype.

    `source` None: this rank adds nothing. `target` may be `source`.
    """
    dtype = wire_dtype(target)
    contribution = None
    if source is not None:
        contribution = on_host(scaled(source.detach(), prescale_factor), dtype)
    target = target.detach()
    room = target if can_receive(target, dtype) else torch.empty(target.shape, dtype=dtype)

    def finish():
        result = scaled(room, postscale_factor)
        if result is not target:
            target.copy_(result)
        return target

    return Handle([push_tensor(contribution, room, name, op, priority)], finish)
