"""push_pull and its variants: BytePS's names for allreduce."""

from __future__ import annotations

from torch import Tensor

from .._core import Average, Op, Sum
from ._handle import Handle
from ._reduce import allreduce, allreduce_async, allreduce_async_
from .compression import Compression
from .compression.cast import Compressor


def _op_of(average: bool) -> Op:
    if isinstance(average, str):
        raise TypeError("the second argument is average, as in BytePS: give the name as name=%r" % average)
    return Average if average else Sum


def push_pull_async(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle[Tensor]:
    """allreduce_async under BytePS's name. Larger priorities go first; `version` is ignored."""
    del version
    return allreduce_async(tensor, None, name, _op_of(average), priority=priority)


def push_pull_async_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle[Tensor]:
    """allreduce_async_ under BytePS's name."""
    del version
    return allreduce_async_(tensor, None, name, _op_of(average), priority=priority)


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Compressor = Compression.none,
) -> Tensor:
    """allreduce under BytePS's name."""
    del version, priority  # neither matters, because this call waits at once
    return allreduce(tensor, None, name, compression, _op_of(average))


def push_pull_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Tensor:
    """allreduce_ under BytePS's name."""
    return push_pull_async_inplace(tensor, average, name, version, priority).wait()


def declare(name: str) -> None:
    """Does nothing but check the name: BytePS declares ahead of time, Addend at the first use."""
    if not isinstance(name, str):
        raise TypeError("a tensor's name must be a str, not %r" % (name,))
