"""horovod.common.util, by Addend."""

from addend.torch import gloo_built, mpi_built, nccl_built

__all__ = ["gloo_built", "mpi_built", "nccl_built"]
