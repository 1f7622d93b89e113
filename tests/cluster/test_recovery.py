"""Servers die, stop, are cut off or leave while the ranks push: every round completes, with the same bits."""
import signal

import pytest

from tests.support import netns
from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

LEASE = ["--lease=3s"]


def cpu_servers(cluster):
    return sum(not server["colocated"] for server in cluster.addendctl("status")["servers"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
@pytest.mark.parametrize("nodes,local_size,shards", [(2, 1, 1), (3, 2, 2)])
@pytest.mark.parametrize("shared_memory", ["off", "auto"])
def test_a_server_is_lost(tmp_path, nodes, local_size, shards, number, shared_memory):
    with Cluster(tmp_path, nodes, local_size, cpu_servers=2, shards=shards, scheduler_flags=LEASE, shared_memory=shared_memory) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        cluster.servers[0].signal(number)
        goes_on(ranks)
        finish(ranks)
        if number == signal.SIGSTOP:
            cluster.servers[0].signal(signal.SIGCONT)  # so that it ends with the cluster


def test_all_cpu_servers_are_lost_one_after_the_other(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=3, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        for server in cluster.servers:
            server.kill()
            goes_on(ranks)
        finish(ranks)


def test_a_server_that_was_declared_dead_comes_back(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        cluster.servers[0].signal(signal.SIGSTOP)
        eventually(lambda: cpu_servers(cluster) == 0, 10 * PATIENCE, "the end of its lease")
        goes_on(ranks)
        cluster.servers[0].signal(signal.SIGCONT)
        eventually(lambda: cpu_servers(cluster) == 1, 10 * PATIENCE, "its return")
        goes_on(ranks)
        finish(ranks)


def test_without_colocated_servers_the_last_one_is_an_error_on_every_rank(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2, agent_flags=["--colocated-summation=false"], scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        cluster.servers[0].kill()
        goes_on(ranks)
        cluster.servers[1].kill()
        for outcome in ranks.join(10, expect=None):
            assert outcome.result["code"] in (72, 75) and "server" in outcome.result["text"], outcome.result


def test_a_server_that_is_cut_off_is_replaced_when_its_lease_ends(tmp_path):
    if reason := netns.unavailable():
        pytest.skip(reason)
    with netns.Network(3, "1gbit") as network, Cluster(
            tmp_path, nodes=2, cpu_servers=1, network=network, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        network.cut(3)
        goes_on(ranks)
        finish(ranks)
