"""Rounds of single tensors, of which all sums of tensors are made."""

import torch

from .._core import Average, Sum
from . import _gpu
from ._handle import Handle
from ._tensors import can_receive, on_host, push_tensor, scaled, wire_dtype


def start_reduce(
    source,
    target,
    name,
    op,
    priority=0,
    prescale_factor=1.0,
    postscale_factor=1.0,
    participants=None,
    wire=None,
):
    """Starts `target` = `source` combined over the participants, for dense tensors of the same shape
    and dtype.

    `source` None: this rank adds nothing. `target` may be `source`. `participants`: as in
    push_tensor(); GPU memory of some ranks goes through a copy in host memory. `wire`: as in
    push_tensor(), of sums and averages of float32; others travel as they are.
    """
    dtype = wire_dtype(target)
    wire = wire if dtype == torch.float32 and op in (Sum, Average) else None
    if participants is None and _on_gpu(source, target):
        factors = prescale_factor, postscale_factor
        return _start_on_gpu(source, target, dtype, name, op, priority, factors, wire)
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

    return Handle([push_tensor(contribution, room, name, op, priority, participants, wire)], finish)


def _on_gpu(source, target):
    # An empty tensor has no address on the GPU.
    return target.numel() > 0 and _gpu.on_gpu(target) and (source is None or _gpu.on_gpu(source))


def _start_on_gpu(source, target, dtype, name, op, priority, factors, wire):
    prescale_factor, postscale_factor = factors
    target = target.detach()
    contribution = None
    if source is not None:
        contribution = scaled(source.detach(), prescale_factor).to(dtype).contiguous()
        contribution = contribution.resolve_conj().resolve_neg()
    plain = target.dtype == dtype and target.is_contiguous() and not target.is_neg()
    room = target if plain else torch.empty(target.shape, dtype=dtype, device=target.device)
    handle = _gpu.start(contribution, room, name, op, priority, wire)

    def finish():
        _gpu.receive(handle, room, target)
        result = scaled(room, postscale_factor)
        if result is not target:
            target.copy_(result)
        return target

    return Handle([handle], finish)
