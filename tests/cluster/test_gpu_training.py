"""addend.torch with GPU tensors, with emulated GPUs: the same bits as from host memory, and errors on every rank."""
import pytest

from tests.support import emulated_gpu
from tests.support.cluster import ROOT, Cluster, SANITIZED
from tests.support.ports import free_port

pytestmark = pytest.mark.skipif(bool(SANITIZED), reason="the trainers' library is that of the release build")
FLAGS = [f"--topology={ROOT}/tests/data/topology/dgx.xml"]
GPUS = emulated_gpu.BUS_IDS["dgx"][:2]


def start(cluster, what, **more):
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return cluster.start_ranks("gpu_training.py", {"what": what, "bus_ids": GPUS, **more}, env=env)


def run(tmp_path, what, nodes=2, **more):
    with Cluster(tmp_path, nodes=nodes, local_size=2, agent_flags=FLAGS) as cluster:
        results = [one.result for one in start(cluster, what, **more).join(120)]
        return results, "".join(agent.text() for agent in cluster.agents.values())


def test_training_has_the_bits_of_host_memory(tmp_path):
    results, log = run(tmp_path, "same_bits", group=True)
    assert "aggregate by reduce-scatter" in log
    for result in results:
        assert result["device"] == result["host"]
        assert result["host"] == results[0]["host"]
        assert all(rounds > 0 for rounds in result["rounds"]), result["rounds"]


def test_abandoned_rounds_free_their_memory(tmp_path):
    results, _ = run(tmp_path, "dropped")
    for result in results:
        assert result["right"] and result["left"] == 0 and result["under_way"] < 20, result


def test_a_tensor_of_another_gpu_is_refused(tmp_path):
    results, _ = run(tmp_path, "another_device", nodes=1)
    for result in results:
        assert result["error"] == "ValueError" and "a rank has one GPU" in result["text"], result


@pytest.mark.parametrize("way", ["hook", "optimizer"])
def test_a_rank_that_dies_is_an_error_on_all_others(tmp_path, way):
    with Cluster(tmp_path, nodes=2, local_size=2, agent_flags=FLAGS, scheduler_flags=["--lease=2s"]) as cluster:
        ranks = start(cluster, "killed", way=way, group=way == "hook", shutdown=False)
        ranks.wait_at("trained")
        ranks.open("trained")
        ranks.processes[1].kill()
        results = [one.result for one in ranks.join(60, expect=None) if one.rank != 1]
    for result in results:
        assert result["error"] == "PeerLostError" and result["seconds"] < 30, result
