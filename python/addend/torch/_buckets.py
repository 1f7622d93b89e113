"""Gradients in buckets, for compression schemes."""

import hashlib

import torch

from .. import _errors
from .compression import Bucket, Part

_BYTES = 25 * 1024 * 1024  # DistributedDataParallel's default


class _Filling:
    """A bucket, and the gradients that are ready in this step."""

    def __init__(self, prefix, entries, priority):
        self.entries = entries
        self.parts = {}
        end = 0
        for entry in entries:
            start, end = end, end + entry.parameter.numel()
            self.parts[entry] = Part(entry.label, start, end)
        first = entries[0].parameter
        buffer = torch.empty(end, dtype=first.dtype, pin_memory=first.device.type == "cuda")
        identity = ";".join("%s %s" % (e.label, tuple(e.parameter.shape)) for e in entries)
        digest = hashlib.sha256(("%s;%s" % (first.dtype, identity)).encode()).hexdigest()[:32]
        self.bucket = Bucket(prefix + "bucket/" + digest, buffer, self.parts.values(), priority)
        self.gradients = {}  # entry -> (gradient, its version)

    def add(self, entry, gradient):
        part = self.parts[entry]
        self.bucket.buffer[part.start : part.stop].copy_(gradient.detach().reshape(-1))
        self.gradients[entry] = (gradient, gradient._version)

    def full(self):
        return len(self.gradients) == len(self.entries)


class _Exchanged:
    """A bucket whose exchange is under way."""

    def __init__(self, filling, handle):
        self._filling = filling
        self._gradients, filling.gradients = filling.gradients, {}
        self._handle = handle

    def check(self):
        for entry, (gradient, version) in self._gradients.items():
            entry.check_unchanged(gradient, version)

    def finish(self):
        """Waits for the averages and stores them as the gradients."""
        self._handle.wait()
        for entry, (gradient, _) in self._gradients.items():
            part = self._filling.parts[entry]
            with torch.no_grad():
                gradient.copy_(part.shaped(self._filling.bucket.buffer, gradient.shape))
            entry.put(gradient)


class Buckets:
    """Exchanges gradients through a compression scheme.

    A bucket holds parameters of a single dtype, the last parameters first, because their gradients
    come first. The scheme gets a bucket when it is full and all earlier buckets were given: so
    in the same order on all ranks.
    """

    takes_sparse = False

    def __init__(self, scheme, prefix):
        self.scheme = scheme
        self._prefix = prefix
        self._all = []
        self._of = {}  # entry -> its bucket
        self._under_way = []

    def adopt(self, entries):
        """Makes the buckets of these parameters. Call it only while no exchange is under way."""
        for filling in self._all:
            self._forget(filling.bucket.name)
        groups = _grouped(entries)
        self._all = [_Filling(self._prefix, group, i) for i, group in enumerate(groups)]
        self._of = {entry: filling for filling in self._all for entry in filling.entries}

    def _forget(self, name):
        try:
            self.scheme.forget(name)
        except _errors.Error as error:
            if error.code != _errors.STATE:
                raise  # STATE: the bucket belongs to an aborted step, and stays declared

    def start(self, entry, gradient, empty):
        """Takes a gradient that is ready: zeros if this rank has no gradient (`empty`)."""
        del empty
        self._of[entry].add(entry, gradient)
        while len(self._under_way) < len(self._all) and self._all[len(self._under_way)].full():
            filling = self._all[len(self._under_way)]
            self._under_way.append(_Exchanged(filling, self.scheme.start(filling.bucket)))

    def started(self):
        """The buckets under way: all of them once every gradient is ready."""
        return list(self._under_way)

    def clear(self):
        """Makes the next start() begin a new step."""
        self._under_way = []
        for filling in self._all:
            filling.gradients = {}

    def check_join(self):
        raise NotImplementedError(
            "join() does not work with %s: a compression scheme needs the gradients of all ranks; use "
            "Compression.none, fp16 or bf16, or give all ranks the same number of batches"
            % type(self.scheme).__name__
        )


def _grouped(entries):
    """Lists of entries, in the order in which their gradients are likely to be ready."""
    groups, open_ = [], {}  # by dtype and type of device
    for entry in reversed(entries):
        parameter = entry.parameter
        key = (parameter.dtype, parameter.device.type)
        size = parameter.numel() * parameter.element_size()
        if key not in open_ or open_[key][1] + size > _BYTES:
            open_[key] = ([], 0)
            groups.append(open_[key][0])
        group, used = open_[key]
        group.append(entry)
        open_[key] = (group, used + size)
    return groups
