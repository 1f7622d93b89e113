"""Asynchronous mode: the owner keeps the latest value, adds every contribution on arrival and answers with the value."""
import hashlib
import random
import signal

import pytest

from tests.support import reference
from tests.support.cluster import Cluster, PATIENCE, SANITIZED
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

COUNTS = "async_counts.py"
LEASE = ["--lease=3s"]
TENSORS = {"weights": ("float32", 300_011), "half": ("float16", 4_001), "brain": ("bfloat16", 70_000), "few": ("float64", 3)}


def parameter_server(order):
    """A plain asynchronous parameter server: the digests of each tensor after each update."""
    digests, values = [], {}
    for turn in range(len(order)):
        of_turn = []
        for i, (name, (dtype, size)) in enumerate(TENSORS.items()):
            update = reference.widen(dtype, reference.random_values(dtype, size, [turn, i]))
            if name in values:
                update = reference.widen(dtype, values[name]) + update
            values[name] = reference.narrow(dtype, update)
            of_turn.append(hashlib.sha256(values[name].tobytes()).hexdigest())
        digests.append(of_turn)
    return digests


def replay(cluster, script, parameters, fate):
    """The values that the ranks saw after each update. `fate`: a signal that a server gets in between."""
    ranks = cluster.start_ranks(script, parameters)
    (ranks.folder / "turn.0").touch()
    if fate:  # between or during updates
        eventually(lambda: (ranks.folder / "turn.5").exists(), 30 * PATIENCE, "the fifth update")
        cluster.servers[0].signal(fate)
    digests = {}
    for outcome in ranks.join(60):
        assert outcome.result["error"] is None, outcome.result
        digests.update(outcome.result["digests"])
    return [digests[str(turn)] for turn in range(len(parameters["order"]))]


REPLAYS = [(2, 2, signal.SIGTERM), (0, 1, None), (1, 2, None), (3, 1, None), (2, 1, signal.SIGKILL)]


@pytest.mark.parametrize("cpu_servers,shards,fate", REPLAYS[:1] if SANITIZED else REPLAYS)
def test_a_replayed_order_has_the_bits_of_a_plain_parameter_server(tmp_path, cpu_servers, shards, fate):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    order = random.Random(seed).choices(range(3), k=14)
    with Cluster(tmp_path, nodes=3, cpu_servers=cpu_servers, shards=shards, scheduler_flags=LEASE) as cluster:
        digests = replay(cluster, "async_replay.py", {"order": order, "tensors": TENSORS}, fate)
    assert digests == parameter_server(order)


@pytest.mark.skipif(bool(SANITIZED), reason="what it adds is Python")
@pytest.mark.parametrize("cpu_servers,fate", [(0, None), (2, signal.SIGKILL)])
def test_training_in_a_replayed_order_has_the_weights_of_a_plain_parameter_server(tmp_path, cpu_servers, fate):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    order = random.Random(seed).choices(range(3), k=20)
    with Cluster(tmp_path, nodes=3, cpu_servers=cpu_servers, scheduler_flags=LEASE) as cluster:
        digests = replay(cluster, "async_training.py", {"order": order}, fate)
        reference = cluster.run_ranks("async_training.py", {"order": order, "reference": True}, ranks=[0])[0].result
    assert digests == reference["digests"]


@pytest.mark.parametrize("nodes,local_size,shards", [(2, 1, 2), (2, 2, 1)] if SANITIZED else [(2, 1, 2), (4, 1, 1), (2, 2, 1)])
def test_no_update_is_lost_or_added_twice_whatever_happens_to_the_servers(tmp_path, nodes, local_size, shards):
    with Cluster(tmp_path, nodes, local_size, cpu_servers=2, shards=shards, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster, COUNTS)
        goes_on(ranks)
        cluster.servers[0].kill()
        goes_on(ranks)
        cluster.start_summation()
        goes_on(ranks, rounds=20)
        cluster.servers[1].signal(signal.SIGTERM)  # drained
        goes_on(ranks)
        cluster.servers[1].wait(30 * PATIENCE)
        assert "drained" in cluster.servers[1].log.read_text()
        goes_on(ranks)
        finish(ranks)


def test_a_server_that_stands_still_is_replaced_and_comes_back(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=1, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster, COUNTS)
        cluster.servers[0].signal(signal.SIGSTOP)
        goes_on(ranks, timeout=30)
        cluster.servers[0].signal(signal.SIGCONT)
        goes_on(ranks)
        finish(ranks)
        assert any("0 updates lost" in agent.log.read_text() for agent in cluster.agents.values())


def test_a_slow_node_does_not_delay_other_nodes(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=1) as cluster:
        ranks = running(cluster, COUNTS)
        ranks.processes[1].signal(signal.SIGSTOP)
        goes_on(ranks, 20, of=[0, 2])
        ranks.processes[1].signal(signal.SIGCONT)
        finish(ranks)


def test_a_lost_node_is_an_error_on_the_others(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=1, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster, COUNTS, losses=True)
        ranks.processes[2].kill()
        for outcome in ranks.join(30 * PATIENCE, expect=None):
            if outcome.rank != 2:
                assert outcome.result["error"] == "PeerLostError" and "rank 2" in outcome.result["text"], outcome.result


def test_with_shrink_the_others_go_on_and_the_log_counts_what_was_lost(tmp_path):
    """A node and a server die together: only the updates whose only copies were on that node are lost."""
    with Cluster(tmp_path, nodes=3, cpu_servers=1, scheduler_flags=LEASE, agent_flags=["--on-node-loss=shrink"]) as cluster:
        ranks = running(cluster, COUNTS, losses=True)
        goes_on(ranks)
        for process in (ranks.processes[2], cluster.agents[2], cluster.servers[0]):
            process.kill()
        goes_on(ranks, 20, timeout=30, of=[0, 1])
        ranks.open("stop")
        for rank in (0, 1):
            ranks.processes[rank].wait(30 * PATIENCE)
        logs = "".join(cluster.agents[node].log.read_text() for node in (0, 1))
        assert "restored from the most recent copies" in logs and "updates lost" in logs, logs[-2000:]
