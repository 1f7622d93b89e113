"""PyTorch on a real GPU: the bits of host memory, the same weights on all ranks, and nothing that waits for the device.

All ranks share one GPU, so NCCL is not in it. Without a GPU everything here is skipped; scripts/test-gpu runs it on one.
"""
import pytest

from tests.gpu.gpus import run

TRAINER = "training.py"
NODES_AND_RANKS = [(1, 1), (1, 2), (1, 4), (2, 2)]


@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "own stream"])
@pytest.mark.parametrize("way", ["allreduce", "optimizer", "hook"])
@pytest.mark.parametrize("nodes,local_size", NODES_AND_RANKS)
def test_training(tmp_path, nodes, local_size, way, own_stream):
    results = run(tmp_path, TRAINER, nodes, local_size, what="training", way=way, own_stream=own_stream, steps=20)
    for result in results:
        assert result["different"] == []
        assert result["checksum"] == results[0]["checksum"]
        assert result["losses"][-1] < result["losses"][0], result["losses"]


@pytest.mark.parametrize("nodes,local_size", NODES_AND_RANKS)
def test_nothing_waits_for_the_gpu_in_the_steady_state(tmp_path, nodes, local_size):
    for result in run(tmp_path, TRAINER, nodes, local_size, what="steady"):
        assert result["copies"] > 0 and result["waits"] == [] and result["right"], result
