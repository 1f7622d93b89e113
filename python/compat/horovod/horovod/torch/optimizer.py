"""horovod.torch.optimizer, by Addend."""

from addend.torch import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
