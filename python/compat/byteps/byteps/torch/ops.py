"""byteps.torch.ops, by Addend."""

from addend.torch.byteps import *  # noqa: F401,F403
from addend.torch.byteps import __all__  # noqa: F401
