"""byteps.torch.parallel.distributed, by Addend."""

from addend.torch.byteps.parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
