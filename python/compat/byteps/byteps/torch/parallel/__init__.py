"""byteps.torch.parallel, by Addend."""

from addend.torch.byteps.parallel import DistributedDataParallel

from . import distributed  # noqa: F401

__all__ = ["DistributedDataParallel"]
