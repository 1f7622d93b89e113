"""Racks: the contributions of their nodes are summed there, and only sums travel between racks. The bits are those of the flat plan, even if a member is lost."""
import signal

import pytest

from tests.cluster.test_numerics import check_matrix
from tests.support import scrape
from tests.support.cluster import PATIENCE, Cluster
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

LEASE = ["--lease=3s"]


def racks(size):
    return lambda node: [f"--network-place=zone/rack-{node // size}"]


def in_rack(rack):
    return lambda index: [f"--network-place=zone/rack-{rack}"]


def with_relays(cluster, **parameters):
    ranks = running(cluster, **parameters)
    goes_on(ranks, timeout=60)
    eventually(lambda: "with relays for" in cluster.scheduler.text(), 10 * PATIENCE, "a plan with relays")
    return ranks


@pytest.mark.parametrize("nodes,rack,cpu_servers,shards,shared_memory", [
    (9, 8, 0, 1, "off"), (16, 4, 0, 2, "off"), (10, 3, 2, 1, "off"), (17, 5, 1, 2, "off"), (10, 5, 1, 2, "auto")])
def test_every_cut_into_racks_gives_the_bits_of_the_tree(tmp_path, nodes, rack, cpu_servers, shards, shared_memory):
    with Cluster(tmp_path, nodes, cpu_servers=cpu_servers, shards=shards, agent_flags=["--audit-one-in=1"], flags_of_node=racks(rack),
                 flags_of_server=in_rack(1), shared_memory=shared_memory) as cluster:
        ranks = with_relays(cluster)
        services = [*cluster.agents.values(), *cluster.servers]
        eventually(lambda: scrape.total(services, "addend_audits_total", result="match") > 0, 20 * PATIENCE, "audits")
        finish(ranks)
        assert scrape.total(services, "addend_audits_total", result="mismatch") == 0
        assert "without relays" not in cluster.scheduler.text() and "refused" not in cluster.scheduler.text()


@pytest.mark.parametrize("nodes,rack", [(9, 8), (10, 3), pytest.param(100, 10, marks=[pytest.mark.full, pytest.mark.big])])
def test_every_type_and_operation_gives_the_bits_of_the_tree(tmp_path, nodes, rack):
    check_matrix(tmp_path, nodes, 1, 1, 2, [("random", 1), ("random", 1023), ("special", 1023)], flags_of_node=racks(rack), flags_of_server=in_rack(0))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_server_that_owns_and_relays_is_lost(tmp_path, number):
    with Cluster(tmp_path, 9, cpu_servers=2, scheduler_flags=LEASE, flags_of_node=racks(8), flags_of_server=in_rack(0)) as cluster:
        ranks = with_relays(cluster)
        cluster.servers[0].signal(number)
        # A server that is drained, and relays nothing, hands its partitions over while the others' go on through relays.
        done = " is drained" if number == signal.SIGTERM else "without relays"
        eventually(lambda: done in cluster.scheduler.text(), 20 * PATIENCE, "the loss")
        goes_on(ranks, timeout=60)
        cluster.await_ports(cluster.start_summation())
        goes_on(ranks, timeout=60)
        if number == signal.SIGSTOP:  # it comes back, late
            cluster.servers[0].signal(signal.SIGCONT)
            goes_on(ranks, timeout=60)
        finish(ranks)


@pytest.mark.full
@pytest.mark.big
@pytest.mark.parametrize("nodes,rack", [(64, 8), (100, 10)])
def test_many_racks_lose_a_server_that_owns_and_relays(tmp_path, nodes, rack):
    """Eight whole branches of the tree; and racks that cut it."""
    with Cluster(tmp_path, nodes, cpu_servers=2, flags_of_node=racks(rack), flags_of_server=in_rack(1)) as cluster:
        ranks = cluster.start_ranks("rounds.py", {"gate_after": 1, "variants": 2, "smaller": 20})
        ranks.wait_at("running", 300)
        ranks.open("running")
        eventually(lambda: "with relays for" in cluster.scheduler.text(), 10 * PATIENCE, "a plan with relays")
        goes_on(ranks, 3, timeout=120)
        cluster.servers[0].kill()
        eventually(lambda: "without relays" in cluster.scheduler.text(), 60 * PATIENCE, "the loss")
        goes_on(ranks, 3, timeout=120)
        finish(ranks)


def test_the_others_go_on_when_a_node_with_its_relay_is_lost(tmp_path):
    with Cluster(tmp_path, 10, scheduler_flags=LEASE, agent_flags=["--on-node-loss=shrink"], flags_of_node=racks(5)) as cluster:
        others = list(range(9))
        ranks = with_relays(cluster, script="losses.py", left=others)
        cluster.agents[9].kill()
        ranks.processes.pop(9).kill()
        eventually(lambda: "without relays" in cluster.scheduler.text(), 20 * PATIENCE, "the loss")
        goes_on(ranks, timeout=60)
        ranks.open("stop")
        for outcome in ranks.join(60):
            assert outcome.result["error"] is None and outcome.result["wrong"] == [], outcome.result


def test_a_scheduler_is_killed_and_goes_on_with_its_relays(tmp_path):
    with Cluster(tmp_path, 9, scheduler_flags=LEASE, store=f"sqlite:{tmp_path}/store.db", flags_of_node=racks(8)) as cluster:
        ranks = with_relays(cluster)
        cluster.scheduler.kill()
        cluster.start_scheduler()
        goes_on(ranks, timeout=60)
        finish(ranks)
        assert "without relays" not in cluster.scheduler.text() and "refused" not in cluster.scheduler.text()
