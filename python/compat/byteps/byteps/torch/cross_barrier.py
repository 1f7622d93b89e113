"""byteps.torch.cross_barrier, by Addend."""

from addend.torch.byteps.cross_barrier import CrossBarrier

__all__ = ["CrossBarrier"]
