"""horovod.torch, by Addend: the names of addend.torch."""

from addend.torch import *  # noqa: F401,F403
from addend.torch import __all__  # noqa: F401
from addend.torch.compression import Compression  # noqa: F401

from . import compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm  # noqa: F401
