"""horovod.torch.sync_batch_norm, by Addend."""

from addend.torch import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
