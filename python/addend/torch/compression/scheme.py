"""The interface of compression schemes: a scheme turns a bucket of gradients into its average over
all ranks.

A scheme is a file in this folder. DistributedOptimizer(compression=...) and
HookState(compression=...) give it buckets; a scheme sends with the functions of addend.torch, so
that its results have the same bits on all ranks. An object serves a single model, and keeps its
state (residuals, velocities) by the name of the parameter, because buckets come and go.

A gradient that is not finite makes the average not finite on all ranks in the same step, even if
the exchange leaves that gradient out: so torch.cuda.amp.GradScaler skips the step on all ranks. A
scheme's state of such a bucket stays as it was before the step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ContextManager, Iterable, Mapping, Sequence

from torch import Tensor
from torch.optim import Optimizer

from ... import _core

if TYPE_CHECKING:
    from .._handle import Handle


class Part:
    """A parameter's part of a bucket: buffer[start:stop] is its gradient, flat.

    `stride`: the strides of the gradient in that part, in elements, if it is not in the order of
    its indices (DistributedDataParallel keeps the order in memory of channels_last parameters).
    """

    __slots__ = ("name", "start", "stop", "stride")

    def __init__(
        self,
        name: str,
        start: int,
        stop: int,
        stride: Sequence[int] | None = None,
    ) -> None:
        self.name = name
        self.start = start
        self.stop = stop
        self.stride = stride

    def shaped(self, flat: Tensor, shape: Sequence[int]) -> Tensor:
        """A view of a tensor like the buffer, cut to this parameter and in the parameter's shape."""
        piece = flat[self.start : self.stop]
        if self.stride is None:
            return piece.view(shape)
        return piece.as_strided(shape, self.stride)


class Bucket:
    """Gradients that are exchanged together.

    name      the same on all ranks; buckets of other parameters have other names
    buffer    their values: one dimension, contiguous, of one floating type; in host memory, but a
              CastScheme's may be on a GPU
    parts     a Part for every parameter, in the order of the buffer, which they cover without gaps
    priority  larger priorities go first
    """

    __slots__ = ("name", "buffer", "parts", "priority")

    def __init__(self, name: str, buffer: Tensor, parts: Iterable[Part], priority: int = 0) -> None:
        self.name = name
        self.buffer = buffer
        self.parts = tuple(parts)
        self.priority = priority


class Scheme:
    """The base of all schemes. A single thread at a time calls its methods, on all ranks alike.

    Any thread may wait for the handles that start() returns, even while start() runs for another
    bucket.
    """

    def start(self, bucket: Bucket) -> Handle[Tensor]:
        """Begins the exchange; the handle's wait() leaves the average of all ranks in
        bucket.buffer.

        Called once per bucket and step, in the same order of buckets on all ranks. Returns an
        addend.torch Handle. Must not wait for other ranks' part in this step.
        """
        raise NotImplementedError

    def stepping(self, optimizer: Optimizer, names: Mapping[Tensor, str]) -> ContextManager[Any]:
        """A context manager around the optimizer's step that uses the gradients.

        `names`: {parameter: its name}. For schemes in which some elements have no gradient in this
        step, and must not change.
        """
        return _Nothing()

    def forget(self, bucket_name: str) -> None:
        """Undeclares the tensors of a bucket that no longer exists. State kept by parameter stays.

        Tensors are named after their bucket: `name` itself, or `name`/ and any suffix. An Error
        with the code STATE means that a round of them is still under way: try again later.
        """
        for tensor in [bucket_name, *_core.declared_under(bucket_name + "/")]:
            _core.undeclare(tensor)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state for a checkpoint; tensors by parameter name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state_dict() of this rank."""
        if state:
            raise ValueError("%s keeps no state, but was given some" % type(self).__name__)


def share_of(fraction: float, count: int) -> int:
    """The number of elements in a fraction of `count`: rounded up, at least one."""
    # The slack: 0.07 * 100 is a little more than 7.
    return max(1, math.ceil(fraction * count - 1e-6))


class _Nothing:
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None
