"""SyncBatchNorm: batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from .._core import Sum
from . import _sets
from ._reduce import allreduce
from ._sets import ProcessSet
from .compression.cast import Exact


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm1d, 2d and 3d, with mean and variance over the batches of all ranks, which
    may differ in size. On CPUs and GPUs.

    All ranks call their layers in the same order. The gradients of weight and bias are each rank's
    own, as those of every layer. `process_set`: the ranks whose batches count together.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet | None = None,
    ) -> None:
        # None is the average of all batches, which PyTorch 1.13 does not say.
        super().__init__(num_features, eps, cast(float, momentum), affine, track_running_stats)
        self._process_set = process_set

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError("SyncBatchNorm takes tensors of at least 2 dimensions, not of %d" % input.dim())

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        alone = len(_sets.chosen(self._process_set).ranks) == 1
        if alone or not (self.training or not self.track_running_stats):
            return super().forward(input)
        # Sums of 16 bits would lose their small terms.
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        others = [dim for dim in range(values.dim()) if dim != 1]
        shape = [1, -1] + [1] * (values.dim() - 2)
        own = values.numel() // max(1, values.shape[1])
        count = self._summed(torch.tensor([own], dtype=torch.float64)).to(values)
        mean = self._summed(values.sum(others)) / count
        centered = values - mean.reshape(shape)
        variance = self._summed((centered * centered).sum(others)) / count
        if self.track_running_stats and self.training:
            self._track(mean.detach(), variance.detach(), float(count))
        result = centered * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.affine:
            result = result * self.weight.reshape(shape) + self.bias.reshape(shape)
        return result.to(input.dtype)

    def _summed(self, values: Tensor) -> Tensor:
        # The gradient of a sum over ranks is the sum of the ranks' gradients.
        return allreduce(values, op=Sum, process_set=self._process_set, compression=Exact)

    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        part = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(1.0, count - 1.0))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.mul_(1.0 - part).add_(new.to(running.dtype), alpha=part)
