"""horovod.torch.elastic, by Addend."""

from addend.torch.elastic import *  # noqa: F401,F403
from addend.torch.elastic import __all__  # noqa: F401

from . import sampler, state  # noqa: F401
