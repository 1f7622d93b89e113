"""What a compression scheme is: how a bucket of gradients becomes its average over all ranks.

A scheme is one file here. DistributedOptimizer(compression=...) and HookState(compression=...) give
it buckets; what it sends it sends with the functions of addend.torch, so that its results have the
same bits on all ranks. One object serves one model, and keeps what it remembers (residuals,
velocities) by the name of the parameter, because buckets come and go.

A gradient that is not finite makes the average not finite on all ranks in the same step, whatever is
left out of the exchange: so torch.cuda.amp.GradScaler skips the step on all of them. What a scheme
remembers of such a bucket stays as it was before the step.
"""

import math

from ... import _core


class Part:
    """One parameter's place in a bucket: buffer[start:stop] is its gradient, flat.

    `stride`: how the gradient lies there, in elements, where that is not in the order of its indices
    (DistributedDataParallel keeps the order in memory of channels_last parameters).
    """

    __slots__ = ("name", "start", "stop", "stride")

    def __init__(self, name, start, stop, stride=None):
        self.name = name
        self.start = start
        self.stop = stop
        self.stride = stride

    def shaped(self, flat, shape):
        """A tensor like the buffer, cut to this parameter and given the parameter's shape: a view."""
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
    priority  larger first
    """

    __slots__ = ("name", "buffer", "parts", "priority")

    def __init__(self, name, buffer, parts, priority=0):
        self.name = name
        self.buffer = buffer
        self.parts = tuple(parts)
        self.priority = priority


class Scheme:
    """The base of all schemes. Its methods are called by one thread at a time, on all ranks alike.

    The handles that start() returns are waited for by any thread, also while start() runs for another
    bucket.
    """

    def start(self, bucket):
        """Begins the exchange; the handle's wait() leaves the average of all ranks in bucket.buffer.

        Called once per bucket and step, in the same order of buckets on all ranks. Returns a
        addend.torch Handle. Must not wait for other ranks' part in this step.
        """
        raise NotImplementedError

    def stepping(self, optimizer, names):
        """A context manager around the optimizer's step that uses the gradients.

        `names`: {parameter: its name}. For schemes by which some elements have no gradient in this
        step, and must not move.
        """
        return _Nothing()

    def forget(self, bucket_name):
        """The bucket is no more: undeclares its tensors. What is kept by parameter stays.

        Tensors are named after their bucket: `name` itself, or `name`/ and whatever follows. An Error
        with the code STATE says that a round of them is still under way: try again later.
        """
        for tensor in [bucket_name, *_core.declared_under(bucket_name + "/")]:
            _core.undeclare(tensor)

    def state_dict(self):
        """What this rank remembers, for a checkpoint; tensors by parameter name."""
        return {}

    def load_state_dict(self, state):
        """Goes on from a state_dict() of this rank."""
        if state:
            raise ValueError("%s keeps no state, but was given some" % type(self).__name__)


def share_of(fraction, count):
    """That many of `count`: rounded up, at least one."""
    return max(1, math.ceil(fraction * count - 1e-6))  # 0.07 * 100 is a little more than 7


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None
