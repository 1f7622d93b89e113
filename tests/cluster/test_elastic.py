"""Servers join a running job and leave it on purpose: partitions move between two rounds, and every bit stays the same."""
import signal
import time

import pytest

from tests.support import netns
from tests.support.cluster import Cluster, PATIENCE, ROOT
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

# Nothing is lost in these tests: a recovery would be a failure of the tested change.
LOST = ("new owners", "was lost")


def cpu_shares(cluster):
    """Fractions of the job's bytes that the CPU servers sum."""
    cpu = {server["server_id"] for server in cluster.addendctl("status")["servers"] if not server["colocated"]}
    return [share["assigned"] for share in cluster.addendctl("jobs")[0]["shares"] if share["server_id"] in cpu]


def joins(cluster, *flags):
    server = cluster.start_summation(*flags)
    cluster.await_ports(server)
    cluster.servers.append(server)
    return server


def nothing_was_recovered(cluster):
    for process in [cluster.scheduler, *cluster.agents.values()]:
        for what in LOST:
            assert what not in process.log.read_text(), f"{process.name}: {what}"


@pytest.mark.parametrize("nodes,local_size,shards", [(2, 1, 1), (3, 2, 2)])
def test_servers_join_and_leave_a_running_job(tmp_path, nodes, local_size, shards):
    with Cluster(tmp_path, nodes, local_size, cpu_servers=0, shards=shards) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        for count in range(1, 3):
            joins(cluster)
            eventually(lambda: sum(share > 0.02 for share in cpu_shares(cluster)) == count, 5 * PATIENCE,
                       "a share for the server that has joined")
            goes_on(ranks)
        for server in cluster.servers:
            server.signal(signal.SIGTERM)
            assert server.wait(20 * PATIENCE) == 0
            assert "drained" in server.log.read_text()
            goes_on(ranks)
        finish(ranks)
        nothing_was_recovered(cluster)


def test_a_server_is_drained_by_hand(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        server = next(s["server_id"] for s in cluster.addendctl("status")["servers"] if not s["colocated"])
        assert cluster.addendctl("drain", str(server), "--timeout=20s") == {"server_id": server, "drained": True}
        eventually(lambda: any(s.returncode == 0 for s in cluster.servers), 10 * PATIENCE, "the end of its process")
        goes_on(ranks)
        finish(ranks)
        nothing_was_recovered(cluster)


def test_the_plan_follows_within_a_second(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=0) as cluster:
        ranks = running(cluster)
        joins(cluster)
        began = time.monotonic()
        eventually(lambda: "is in force" in cluster.scheduler.log.read_text(), 10 * PATIENCE, "the change")
        assert time.monotonic() - began < 1 * PATIENCE
        goes_on(ranks)
        finish(ranks)
        nothing_was_recovered(cluster)


def test_the_scheduler_dies_in_the_middle_of_a_change(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, store=f"sqlite:{tmp_path}/scheduler.db") as cluster:
        ranks = running(cluster)
        for _ in range(5):
            server = joins(cluster)
            cluster.scheduler.kill()
            cluster.start_scheduler()
            goes_on(ranks)
            server.signal(signal.SIGTERM)
            time.sleep(0.01)
            cluster.scheduler.kill()
            goes_on(ranks)  # the ranks need no scheduler
            cluster.start_scheduler()
            assert server.wait(30 * PATIENCE) == 0
            goes_on(ranks)
        finish(ranks)


@pytest.mark.timing
def test_a_slow_server_gets_less_to_sum_until_it_is_fast_again(tmp_path):
    if reason := netns.unavailable():
        pytest.skip(reason)
    bandwidth = ["--bandwidth=200Mbps"]
    with netns.Network(4, "200mbit") as network, Cluster(
            tmp_path, nodes=2, cpu_servers=2, network=network, scheduler_flags=["--lease=3s"], agent_flags=bandwidth,
            summation_flags=bandwidth) as cluster:
        ranks = cluster.start_ranks(ROOT / "bench" / "failover_trainer.py", {"bytes": 8_000_000})
        ranks.wait_at("running")
        ranks.open("running")
        slow = cluster.servers[0]

        def speeds():
            return sorted(server["speed"] for server in cluster.addendctl("status")["servers"])
        assert speeds() == [1, 1, 1, 1]
        network.limit(slow.host, "40mbit")
        eventually(lambda: 0.04 < speeds()[0] < 0.5, 30 * PATIENCE, "a smaller share for the slow server")
        assert speeds()[1:] == [1, 1, 1], "nobody else is slow"
        network.limit(slow.host, "200mbit")
        eventually(lambda: speeds()[0] > 0.6, 60 * PATIENCE, "its share again")
        ranks.open("stop")
        ranks.join(60)
        nothing_was_recovered(cluster)


@pytest.mark.parametrize("victim", ["old", "new"])
def test_one_end_of_a_move_dies(tmp_path, victim):
    with Cluster(tmp_path, nodes=3, cpu_servers=1, shards=2) as cluster:
        ranks = running(cluster)
        for _ in range(5):
            old = cluster.servers[-1]
            new = joins(cluster)
            (new if victim == "new" else old).kill()
            cluster.servers.remove(new if victim == "new" else old)
            goes_on(ranks)
        finish(ranks)
