"""Horovod's names that Addend does not support: their use raises an error that names the alternative."""

from __future__ import annotations

from typing import Any, Iterator, NoReturn

from .. import local_size, num_nodes, rank, size


class Unsupported:
    """A name of Horovod's that Addend does not support: an op, a function or a class."""

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead

    def __repr__(self) -> str:
        return "addend.torch." + self._name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        self.refuse()

    def refuse(self) -> NoReturn:
        raise NotImplementedError("addend does not have %s: %s" % (self._name, self._instead))


def _unsupported(names: str, instead: str) -> Iterator[Unsupported]:
    return (Unsupported(name, instead) for name in names.split())


(Adasum,) = _unsupported(
    "Adasum", "its result depends on the order of pairs of ranks; use Average with a scaled learning rate"
)
(Product,) = _unsupported("Product", "sum the logarithms, or gather the values with allgather")
alltoall, alltoall_async = _unsupported(
    "alltoall alltoall_async", "use torch.distributed.all_to_all_single with a process group of PyTorch's own"
)
reducescatter, reducescatter_async, grouped_reducescatter, grouped_reducescatter_async = _unsupported(
    "reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async",
    "use allreduce and take this rank's part, or torch.distributed.reduce_scatter_tensor",
)
(sparse_allreduce_async,) = _unsupported(
    "sparse_allreduce_async",
    "use tensor.to_dense() with allreduce, or DistributedOptimizer(sparse_as_dense=True)",
)
add_process_set, remove_process_set, ProcessSet = _unsupported(
    "add_process_set remove_process_set ProcessSet",
    "every rank of the job takes part in every operation; start one job per set of ranks",
)
start_timeline, stop_timeline = _unsupported(
    "start_timeline stop_timeline",
    "the services' /metrics and addendctl why say where time goes, and torch.profiler what the trainer does"
)
(SyncBatchNorm,) = _unsupported(
    "SyncBatchNorm", "use torch.nn.SyncBatchNorm with a process group of PyTorch's own, or GroupNorm"
)


class _GlobalProcessSet:
    """All ranks of the job: the only process set."""

    process_set_id = 0

    def __repr__(self) -> str:
        return "addend.torch.global_process_set"

    def included(self) -> bool:
        return True

    def rank(self) -> int:
        return rank()

    def size(self) -> int:
        return size()


global_process_set = _GlobalProcessSet()


def check_process_set(process_set: object) -> None:
    if process_set is not None and process_set is not global_process_set:
        raise NotImplementedError(
            "addend has no process sets: every rank of the job takes part in every operation; start "
            "one job per set, or see addend.torch.allreduce_replicas_ for shards"
        )


def is_homogeneous() -> bool:
    """True when all nodes have the same number of ranks."""
    return size() == num_nodes() * local_size()


def _absent() -> bool:
    """False: the function asks for a back end of Horovod's, and Addend uses no such back end."""
    return False


mpi_built = mpi_enabled = mpi_threads_supported = gloo_built = gloo_enabled = _absent
ddl_built = ccl_built = cuda_built = rocm_built = _absent


def nccl_built() -> int:
    """0, as Horovod returns without NCCL; with NCCL it returns the version's number."""
    return 0
