"""Agents and servers of one machine exchange payloads through shared memory: the same bits, whoever dies in between."""
import pathlib
import signal
import tempfile
import time

import pytest

from tests.support import netns, scrape
from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

SHARED = {"shared_memory": "auto"}


def links(process, transport):
    return scrape.value(process, "addend_agent_links", transport=transport)


def network_bytes(cluster):
    return scrape.total([*cluster.agents.values(), *cluster.servers], "addend_agent_network_bytes_total")


@pytest.mark.parametrize("local_size,shards", [(1, 1), (2, 2)])
def test_all_links_are_shared_memory_and_the_bits_the_same(tmp_path, local_size, shards):
    with Cluster(tmp_path, 3, local_size, cpu_servers=1, shards=shards, **SHARED) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        for agent in cluster.agents.values():
            assert links(agent, "tcp") == 0 and 3 <= links(agent, "shm") <= 3 * shards
        assert scrape.value(cluster.servers[0], "addend_summation_links", transport="tcp") == 0
        assert network_bytes(cluster) == 0
        finish(ranks)


def test_turned_off_at_one_end_the_network_is_taken(tmp_path):
    with Cluster(tmp_path, 2, cpu_servers=1, summation_flags=["--shared-memory=off"], **SHARED) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        for agent in cluster.agents.values():
            assert links(agent, "tcp") == 1 and links(agent, "shm") == 1
        finish(ranks)


def test_a_folder_joins_network_namespaces(tmp_path):
    if reason := netns.unavailable():
        pytest.skip(reason)
    meeting = pathlib.Path(tempfile.mkdtemp())  # the name of a socket has little room
    with netns.Network(3, "1gbit") as network, Cluster(tmp_path, 2, cpu_servers=1, network=network, shared_memory=meeting) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        for node, agent in cluster.agents.items():
            assert scrape.value(agent, "addend_agent_links", network.prefix(node + 1), transport="shm") == 2
        finish(ranks)
        for service in (*cluster.agents.values(), *cluster.servers):
            service.signal(signal.SIGTERM)
        for service in (*cluster.agents.values(), *cluster.servers):
            assert service.wait(10 * PATIENCE) == 0
    meeting.rmdir()  # a service that ends leaves no socket


@pytest.mark.parametrize("value", ["elsewhere", "/no/such/folder", "/" + 100 * "x"])
def test_a_folder_that_is_none_is_a_sentence(tmp_path, value):
    with Cluster(tmp_path, nodes=0) as cluster:
        server = cluster.start_summation(f"--shared-memory={value}")
        assert server.wait(30) == 64
        assert value in server.text() and "--shared-memory" in server.text()


def test_servers_join_and_leave(tmp_path):
    with Cluster(tmp_path, 2, cpu_servers=1, **SHARED) as cluster:
        ranks = running(cluster)
        cluster.start_summation()
        goes_on(ranks, 20)
        cluster.servers[0].signal(signal.SIGTERM)
        goes_on(ranks, 20)
        finish(ranks)


# The server is stopped before it copies the round's contributions. One of them lies in the memory of a trainer whose agent dies then, and
# which writes it at once.
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_trainer_writes_after_its_agents_end_is_in_no_sum(tmp_path, number):
    flags = ["--on-node-loss=shrink", "--colocated-summation=false"]
    with Cluster(tmp_path, 3, cpu_servers=1, agent_flags=flags, **SHARED) as cluster:
        for attempt in range(3 if number == signal.SIGKILL else 1):
            ranks = cluster.start_ranks("overwrites.py", {"elements": 4_000_000})
            ranks.wait_at("running")
            server, = cluster.servers
            server.signal(signal.SIGSTOP)
            ranks.open("running")
            eventually(lambda: all((ranks.folder / f"pushed.{rank}").read_text() == "4" for rank in range(3)), 20 * PATIENCE, "a fourth push")
            time.sleep(0.2)  # until the agents have lent it
            cluster.agents[2].signal(number)
            eventually(lambda: (ranks.folder / "overwritten.2").exists(), 10 * PATIENCE, "the trainer's next write")
            server.signal(signal.SIGCONT)
            goes_on(ranks, of=[0, 1])
            ranks.open("stop")
            lost = ranks.processes.pop(2)
            lost.wait(30 * PATIENCE)
            for outcome in ranks.join(60, expect=None):
                # A rank may have to hear of the lost node first. Each partition has the lost node's contribution, or has not.
                assert all(set(numbers) <= {7.0, 3.0} for numbers in outcome.result["results"]), outcome.result["results"]
            cluster.await_ports(cluster.start_agent(2, name=f"agent-again{attempt}"))


# The server is stopped before it copies what the rank that leaves has pushed.
def test_a_rank_that_leaves_with_a_push_under_way_has_contributed(tmp_path):
    with Cluster(tmp_path, 3, cpu_servers=1, agent_flags=["--colocated-summation=false"], **SHARED) as cluster:
        ranks = cluster.start_ranks("leaver.py", {"leaver": 2, "pushes_last": True, "elements": 4_000_000, "pauses": True, "ends": True})
        eventually(lambda: (ranks.folder / "pause.2").exists(), 60 * PATIENCE, "three rounds")
        server, = cluster.servers
        server.signal(signal.SIGSTOP)
        ranks.open("pause")
        ranks.wait_at("left")
        server.signal(signal.SIGCONT)
        ranks.open("left")
        for outcome in ranks.join(60):
            assert outcome.result["error"] is None, outcome.result
            assert outcome.result["sums"] == [3.0] * (3 if outcome.rank == 2 else 4)
