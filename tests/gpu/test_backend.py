"""init_process_group("addend") with tensors on a real GPU, which all ranks share."""
import pytest

from tests.gpu.gpus import run

TRAINER = "backend.py"
NODES_AND_RANKS = [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize("nodes,local_size", NODES_AND_RANKS)
def test_sums_have_the_bits_of_host_memory(tmp_path, nodes, local_size):
    for result in run(tmp_path, TRAINER, nodes, local_size, what="sums"):
        assert result["different"] == []


@pytest.mark.parametrize("nodes,local_size", NODES_AND_RANKS)
def test_other_collectives(tmp_path, nodes, local_size):
    results = run(tmp_path, TRAINER, nodes, local_size, what="collectives")
    for result in results:
        assert result["different"] == []
        assert result["weights"] == results[0]["weights"]


@pytest.mark.parametrize("nodes,local_size", NODES_AND_RANKS)
def test_distributed_data_parallel_trains(tmp_path, nodes, local_size):
    results = run(tmp_path, TRAINER, nodes, local_size, what="ddp")
    for result in results:
        assert result["weights"] == results[0]["weights"]
        assert result["last"] < result["first"]


@pytest.mark.parametrize("nodes,local_size", [(2, 1), (2, 2)])
def test_fully_sharded_data_parallel_trains(tmp_path, nodes, local_size):
    results = run(tmp_path, TRAINER, nodes, local_size, what="fsdp")
    if "missing" in results[0]:
        pytest.skip(results[0]["missing"])
    for result in results:
        assert result == results[0]
        assert result["hsdp"] == pytest.approx(result["fsdp"], rel=1e-3, abs=1e-3)
        assert result.get("hook", result["fsdp"]) == pytest.approx(result["fsdp"], rel=1e-3, abs=1e-3)
