"""Every name that horovod.torch and byteps.torch export, through the packages addend-horovod and addend-byteps."""
import pytest

from tests.support.cluster import PATIENCE, ROOT, Cluster

# Of Horovod 0.28 and BytePS 0.2.5.
HOROVOD = """
    Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet Product Sum SyncBatchNorm add_process_set allgather
    allgather_async allgather_object allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast broadcast_
    broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state broadcast_parameters ccl_built cross_rank cross_size cuda_built
    ddl_built elastic global_process_set gloo_built gloo_enabled grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_
    grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async init is_initialized join local_rank
    local_size mpi_built mpi_enabled mpi_threads_supported nccl_built poll rank reducescatter reducescatter_async remove_process_set rocm_built
    shutdown size sparse_allreduce_async start_timeline stop_timeline synchronize
""".split()
BYTEPS = """
    Compression DistributedOptimizer broadcast_object broadcast_optimizer_state broadcast_parameters byteps_push_pull declare init local_rank
    local_size poll push_pull rank resume shutdown size suspend synchronize get_pushpull_speed CrossBarrier parallel.DistributedDataParallel
    push_pull_async push_pull_async_inplace push_pull_inplace push_pull_group_sync_inplace byteps_torch_set_num_grads
""".split()
PACKAGES = ":".join(str(ROOT / "python" / folder) for folder in ("compat/horovod", "compat/byteps", "."))


@pytest.mark.parametrize("nodes,local_size", [(2, 1), (2, 2)])
def test_every_name_does_what_it_is_documented_to_do(tmp_path, nodes, local_size):
    with Cluster(tmp_path, nodes=nodes, local_size=local_size, cpu_servers=1) as cluster:
        ranks = cluster.run_ranks("horovod_names.py", timeout=300 * PATIENCE, env={"PYTHONPATH": f"{PACKAGES}:{ROOT}"})
    for outcome in ranks:
        missing = {*HOROVOD, *(f"bps.{name}" for name in BYTEPS)} - set(outcome.result)
        assert not missing
        failed = {name: why for name, why in outcome.result.items() if why is not None}
        assert not failed, f"rank {outcome.rank}: {sorted(failed)}\n" + "\n".join(dict.fromkeys(failed.values()))
