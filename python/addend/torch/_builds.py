"""Horovod's questions about how it was built. Scripts ask them to choose a back end of Horovod's."""

from .. import local_size, num_nodes, size


def is_homogeneous() -> bool:
    """True when all nodes have the same number of ranks."""
    return size() == num_nodes() * local_size()


def _absent() -> bool:
    """False: Addend has no such back end."""
    return False


def _present() -> bool:
    """True: Addend takes the place of Horovod's Gloo, the back end that needs nothing else."""
    return True


gloo_built = gloo_enabled = _present
mpi_built = mpi_enabled = mpi_threads_supported = _absent
ddl_built = ccl_built = cuda_built = rocm_built = _absent


def nccl_built() -> int:
    """0, as Horovod returns without NCCL; with NCCL it returns the version's number."""
    return 0
