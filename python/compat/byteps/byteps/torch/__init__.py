"""byteps.torch, by Addend."""

from addend.torch.byteps import *  # noqa: F401,F403
from addend.torch.byteps import __all__  # noqa: F401

from . import compression, cross_barrier, ops, parallel  # noqa: F401
