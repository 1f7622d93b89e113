"""Finite resources run out through clients that connect without a handshake; jobs go on, and new members come."""
import os
import pathlib
import resource
import urllib.request

import pytest

from tests.security.flooding import flood
from tests.support.cluster import Cluster, PATIENCE, SANITIZED
from tests.support.full_disk import small_disk
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
MANY = 1000 if SANITIZED else 10_000
# One test at a time, since each takes much of the machine.
pytestmark = [pytest.mark.timing, pytest.mark.skipif(HARD != resource.RLIM_INFINITY and HARD < MANY + 1000, reason=f"a process may have {HARD} open files")]


def descriptors(process):
    return len(list(pathlib.Path(f"/proc/{process.pid}/fd").iterdir()))


@pytest.mark.parametrize("kind", ["silent", "slow"])
def test_strangers_on_the_data_port_keep_nobody_out(tmp_path, kind):
    """The agents' own links to the server are made while it is full."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, shards=2) as cluster:
        server = cluster.servers[0]
        with flood(server.ports["data"], MANY, kind):
            ranks = running(cluster)
            goes_on(ranks)
            eventually(lambda: descriptors(server) < 5000, 10 * PATIENCE, "most of those who have not said who they are to be let go")
            finish(ranks)
        assert server.returncode is None


def test_half_a_hello_is_not_waited_for(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        server = cluster.servers[0]
        before = descriptors(server)
        with flood(server.ports["data"], 50, "half"):
            eventually(lambda: "it has not proved in time who it is" in server.text(), 20 * PATIENCE, "the reason in the server's log")
        eventually(lambda: descriptors(server) <= before, 20 * PATIENCE, "all of them to be closed")


@pytest.mark.parametrize("service", ["scheduler", "summation", "agent"])
def test_silent_clients_of_grpc_keep_nobody_out(tmp_path, service):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        process = {"scheduler": cluster.scheduler, "summation": cluster.servers[0], "agent": cluster.agents[0]}[service]
        ranks = running(cluster)
        with flood(process.ports["grpc"], MANY // 5):
            goes_on(ranks)
            joined = cluster.start_summation()
            cluster.await_ports(joined)
            eventually(lambda: "is in force" in cluster.scheduler.text(), 60 * PATIENCE, "a share for the server that has joined")
            goes_on(ranks)
            assert cluster.addendctl("why", "job")["job"] == "job", "everybody answers"
            finish(ranks)
        assert process.returncode is None


def test_slow_clients_of_http_keep_nobody_out(tmp_path):
    """A client that never finishes its request is disconnected, so that the next client is served."""
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        port = cluster.servers[0].ports["http"]
        with flood(port, MANY // 20, "slow"):
            for _ in range(3):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20 * PATIENCE) as answer:
                    assert b"addend_summation_" in answer.read()


def test_a_server_without_descriptors_left_lets_members_in(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        server = cluster.servers[0]
        room = descriptors(server) + 30
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (room, room))
        with flood(server.ports["data"], 300):
            ranks = running(cluster)
            goes_on(ranks)
            finish(ranks)
        assert server.returncode is None and os.path.exists(f"/proc/{server.pid}")


def test_a_scheduler_whose_disk_is_full_ends_with_the_reason_and_the_job_goes_on(tmp_path):
    """A change that cannot be stored is announced to no member. With room again, a scheduler on the same store continues."""
    with small_disk(tmp_path / "disk") as disk, Cluster(tmp_path, nodes=2, cpu_servers=1, store=f"sqlite:{disk.path}/scheduler.db") as cluster:
        ranks = running(cluster)
        disk.fill()
        late = cluster.start_summation()  # a change that must be stored
        eventually(lambda: cluster.scheduler.returncode is not None, 20 * PATIENCE, "the end of the scheduler")
        assert cluster.scheduler.returncode == 75, "it is to be started again"
        assert "is full: make room" in cluster.scheduler.tail() and str(disk.path) in cluster.scheduler.tail()
        goes_on(ranks)
        disk.free()
        cluster.start_scheduler()
        cluster.await_ports(late)
        goes_on(ranks)
        finish(ranks)
