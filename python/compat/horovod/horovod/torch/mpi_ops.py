"""horovod.torch.mpi_ops, by Addend."""

from addend.torch import *  # noqa: F401,F403
from addend.torch import __all__  # noqa: F401
