"""Jobs of more than eight nodes: the sum follows the tree of radix 8, whatever the plan is and whoever is lost."""
import signal

import pytest

from tests.cluster.test_numerics import check_matrix
from tests.support import scrape
from tests.support.cluster import PATIENCE, Cluster
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

LEASE = ["--lease=3s"]


@pytest.mark.parametrize("nodes,cpu_servers,shards", [(9, 0, 1), (9, 2, 2), (17, 1, 1)])
def test_every_plan_gives_the_bits_of_the_tree(tmp_path, nodes, cpu_servers, shards):
    with Cluster(tmp_path, nodes, cpu_servers=cpu_servers, shards=shards, agent_flags=["--audit-one-in=1"]) as cluster:
        ranks = running(cluster)
        goes_on(ranks, timeout=60)
        services = [*cluster.agents.values(), *cluster.servers]
        eventually(lambda: scrape.total(services, "addend_audits_total", result="match") > 0, 20 * PATIENCE, "audits")
        finish(ranks)
        assert scrape.total(services, "addend_audits_total", result="mismatch") == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_are_lost_and_join(tmp_path, number):
    with Cluster(tmp_path, 9, cpu_servers=2, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        goes_on(ranks, timeout=60)
        cluster.servers[0].signal(number)
        goes_on(ranks, timeout=60)
        cluster.await_ports(cluster.start_summation())
        goes_on(ranks, timeout=60)
        finish(ranks)


@pytest.mark.full
@pytest.mark.big
def test_sixty_four_nodes_lose_a_server(tmp_path):
    """Two full levels of the tree."""
    with Cluster(tmp_path, 64, cpu_servers=2) as cluster:
        ranks = cluster.start_ranks("rounds.py", {"gate_after": 1, "smaller": 20})
        ranks.wait_at("running", 300)
        ranks.open("running")
        goes_on(ranks, 3, timeout=120)
        cluster.servers[0].kill()
        goes_on(ranks, 3, timeout=120)
        finish(ranks)


@pytest.mark.full
@pytest.mark.big
def test_every_type_and_operation_gives_the_bits_of_the_tree(tmp_path):
    check_matrix(tmp_path, 64, 1, 1, 2, [("random", 1), ("random", 1023), ("special", 1023)])


def test_a_server_without_memory_for_early_contributions_asks_for_them_again(tmp_path):
    """Nearly all of its memory is reserved for accumulators."""
    with Cluster(tmp_path, 9, cpu_servers=1, agent_flags=["--colocated-summation=false"], summation_flags=["--memory-limit=2200KiB"]) as cluster:
        ranks = running(cluster)
        goes_on(ranks, timeout=60)
        finish(ranks)
