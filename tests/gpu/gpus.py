"""Ranks of a cluster on this machine, which share its first GPU."""
import os

from tests.support.cluster import ROOT, Cluster
from tests.support.ports import free_port


def run(tmp_path, trainer, nodes, local_size, **parameters):
    """The results of all ranks, by rank."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    if "ADDEND_CUDA_LIBRARY" in os.environ:
        env["ADDEND_CUDA_LIBRARY"] = os.environ["ADDEND_CUDA_LIBRARY"]
    with Cluster(tmp_path, nodes=nodes, local_size=local_size) as cluster:
        path = ROOT / "tests" / "gpu" / "trainers" / trainer
        return [one.result for one in cluster.run_ranks(path, {"device": "cuda:0", **parameters}, timeout=180, env=env)]
