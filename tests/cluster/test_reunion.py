"""A scheduler without a store that is killed: a new scheduler goes on from what the members know."""
import random

import pytest

from tests.cluster.test_training import train
from tests.support.cluster import Cluster, PATIENCE, SANITIZED
from tests.support.ports import free_port
from tests.support.processes import eventually

KILLS = 3 if SANITIZED else 10
STEPS = 4 * KILLS


def lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("nodes,local_size,cpu_servers", [(2, 2, 2), pytest.param(3, 1, 0, marks=pytest.mark.full)])
def test_a_training_run_has_the_same_bits(tmp_path, nodes, local_size, cpu_servers):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    pauses = random.Random(seed)

    def kill_again_and_again(progress):
        for number in range(KILLS):
            # At any moment: also while the members of the former scheduler come back.
            before = lines(progress) + pauses.choice([0, 0, 2, 4])
            eventually(lambda: lines(progress) >= min(before, STEPS - 2), 60 * PATIENCE, f"steps before kill {number}")
            cluster.scheduler.kill()
            cluster.start_scheduler()

    with Cluster(tmp_path, nodes, local_size, cpu_servers, store="memory", scheduler_flags=["--lease=3s"]) as cluster:
        disturbed = train(cluster, "addend", free_port(), STEPS, during=kill_again_and_again)
        reference = train(cluster, "reference", free_port(), STEPS)
    assert disturbed == reference


def run_whose_member_dies_with_the_scheduler(cluster, steps, member):
    ranks = cluster.start_ranks("steps.py", {"steps": steps, "gate": "running"})
    ranks.wait_at("running")
    cluster.scheduler.kill()
    member.kill()
    cluster.start_scheduler()
    ranks.open("running")
    return ranks


def test_a_server_that_dies_with_the_scheduler_is_replaced(tmp_path):
    with Cluster(tmp_path, 2, 1, 2, store="memory", scheduler_flags=["--lease=2s"]) as cluster:
        ranks = run_whose_member_dies_with_the_scheduler(cluster, 400, cluster.servers[0])
        for outcome in ranks.join(60):
            assert outcome.result["error"] is None and outcome.result["steps"] == 400, outcome.result
        assert "goes on in generation 1 from what its members know" in cluster.scheduler.text()


def test_a_node_that_dies_with_the_scheduler_fails_the_run_with_its_name(tmp_path):
    with Cluster(tmp_path, 2, 1, 1, store="memory", scheduler_flags=["--lease=2s"]) as cluster:
        ranks = run_whose_member_dies_with_the_scheduler(cluster, 100_000, cluster.agents[1])
        outcome = ranks.join(60, expect=None)[0]
        assert outcome.result["error"] == "PeerLostError" and "node 1" in outcome.result["text"], outcome.result


def test_a_job_that_has_ended_meanwhile_can_begin_again(tmp_path):
    with Cluster(tmp_path, 2, 1, 1, store="memory") as cluster:
        ranks = cluster.start_ranks("steps.py", {"steps": 5, "gate": "running"})
        ranks.wait_at("running")
        cluster.scheduler.kill()
        ranks.open("running")
        ranks.join()
        cluster.start_scheduler()
        for outcome in cluster.run_ranks("steps.py", {"steps": 5}):
            assert outcome.result["error"] is None, outcome.result
