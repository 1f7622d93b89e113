"""A node is lost: every other rank gets the error in the same round of every tensor, or goes on without the node.

spec/node_loss.pml is the model of the protocol.
"""
import signal
import time

import numpy as np
import pytest

from tests.support import netns
from tests.support.cluster import Cluster, PATIENCE, Ranks
from tests.support.processes import eventually
from tests.support.rounds import goes_on

LEASE = ["--lease=3s"]
SHRINK = ["--on-node-loss=shrink"]


def running(cluster, **parameters):
    ranks = cluster.start_ranks("losses.py", parameters)
    ranks.wait_at("running")
    ranks.open("running")
    return ranks


def lose(cluster, ranks, node, how):
    """Kills a whole node or one of its trainers, or stops the node. Returns the ranks that do not survive."""
    gone = range(node * cluster.local_size, (node + 1) * cluster.local_size)
    if how == "trainer":
        ranks.processes[gone[0]].kill()
        return [gone[0]]
    for process in (cluster.agents[node], *(ranks.processes[rank] for rank in gone)):
        process.signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    return list(gone)


def without(ranks, gone):
    """The surviving ranks, and the others."""
    return [Ranks({rank: process for rank, process in ranks.processes.items() if (rank in gone) == out}, ranks.folder)
            for out in (False, True)]


def check_that_a_stopped_node_learns_of_it(cluster, node, lost):
    """The node was alive but declared lost: its ranks must get no result that the others do not have."""
    for process in (cluster.agents[node], *lost.processes.values()):
        process.signal(signal.SIGCONT)
    for outcome in lost.join(60):
        assert outcome.result["error"] == "PeerLostError" and outcome.result["wrong"] == [], outcome.result


def check_same_end(results, names):
    for result in results:
        assert result["error"] == "PeerLostError" and result["code"] == 75, result
        assert all(name in result["text"] for name in names), result
        assert result["wrong"] == [] and result["rounds"] == results[0]["rounds"], results
        assert result["digests"] == results[0]["digests"], results


@pytest.mark.parametrize("how", ["node", "trainer", "stopped"])
def test_every_rank_fails_in_the_same_round(tmp_path, how):
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    with Cluster(tmp_path, nodes=3, local_size=2, cpu_servers=1, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        time.sleep(np.random.default_rng(seed).uniform(0, 0.5))
        start = time.monotonic()
        ranks, lost = without(ranks, lose(cluster, ranks, 2, how))
        results = [outcome.result for outcome in ranks.join(60)]
        if how != "stopped":
            assert time.monotonic() - start < 3 * PATIENCE, "an agent that is gone need not be waited for"
        check_same_end(results, ["rank 4"] if how == "trainer" else ["node 2", "ranks 4..5"])
        if how == "stopped":
            check_that_a_stopped_node_learns_of_it(cluster, 2, lost)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.3])
def test_a_node_that_gets_its_results_late_fails_in_the_same_round(tmp_path, delay):
    """Some results are still on their way to node 0 when node 2 dies."""
    if reason := netns.unavailable():
        pytest.skip(reason)
    with netns.Network(4, "500mbit") as network, Cluster(
            tmp_path, nodes=3, cpu_servers=1, network=network, scheduler_flags=["--lease=10s"]) as cluster:
        ranks = running(cluster)
        network.limit(1, "10mbit", up="500mbit")
        goes_on(ranks, 3)
        time.sleep(delay)
        ranks, _ = without(ranks, lose(cluster, ranks, 2, "node"))
        check_same_end([outcome.result for outcome in ranks.join(60)], ["node 2", "rank 2"])


@pytest.mark.parametrize("how", ["node", "trainer", "stopped"])
@pytest.mark.parametrize("cpu_servers", [0, 2])
def test_survivors_go_on_without_the_lost_node(tmp_path, how, cpu_servers):
    with Cluster(tmp_path, nodes=3, local_size=2, cpu_servers=cpu_servers, scheduler_flags=LEASE, agent_flags=SHRINK) as cluster:
        ranks = running(cluster, left=[0, 2])
        gone = lose(cluster, ranks, 1, how)
        if how == "trainer":  # the node's other rank learns that its node is out
            ranks.processes[3].wait(30 * PATIENCE)
            gone = [2, 3]
        ranks, lost = without(ranks, gone)

        def known():
            return all("goes on with 2 of 3 nodes" in cluster.agents[node].log.read_text() for node in (0, 2))
        eventually(known, 20 * PATIENCE, "the agents to hear of the loss")
        goes_on(ranks)
        if cpu_servers:  # servers still come and go
            cluster.servers[0].kill()
            goes_on(ranks)
            cluster.await_ports(cluster.start_summation())
            goes_on(ranks)
        ranks.open("stop")
        results = [outcome.result for outcome in ranks.join(60)]
        for result in results:
            assert result["error"] is None and result["wrong"] == [], result
            assert result["without"] > 0 and result["present"] == 2, result
            assert result["digests"] == results[0]["digests"], results
        if how == "stopped":
            check_that_a_stopped_node_learns_of_it(cluster, 1, lost)


@pytest.mark.parametrize("node", [0, 1])
def test_a_restarted_node_comes_back_between_two_steps(tmp_path, node):
    pytest.importorskip("torch")
    with Cluster(tmp_path, nodes=3, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHRINK) as cluster:
        ranks = cluster.start_ranks("elastic.py", {"steps": 40, "returns": 1})
        ranks.wait_at("running")
        ranks.open("running")
        cluster.agents[node].kill()
        ranks.processes.pop(node).kill()
        goes_on(ranks)
        cluster.await_ports(cluster.start_agent(node, name="agent.again"))
        returned = cluster.start_ranks("elastic.py", {"steps": 40}, ranks=[node])
        results = [outcome.result for outcome in (*ranks.join(60), *returned.join(60))]
        for result in results:
            assert result["error"] is None, result
            assert result["checksum"] == results[0]["checksum"] and result["notes"] and result["present"] == 3, results
        assert results[-1]["began_at"] > 3, "where the others were"
