"""byteps.common, by Addend."""

from addend.torch.byteps import get_pushpull_speed

__all__ = ["get_pushpull_speed"]
