"""Temporary shortages of the machine: a name's address, memory for a connection. A server waits without standing still, and recovers."""
import errno
import socket
import time

import pytest

from tests.support.cluster import PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running
from tests.support.shim import ShimmedCluster


def test_a_name_with_several_addresses_is_reached_at_any_of_them(tmp_path):
    """No process listens at the first address."""
    with ShimmedCluster(tmp_path, "agent", nodes=2, cpu_servers=1, flags_of_server=lambda index: ["--advertise=two.test"]) as cluster:
        ranks = running(cluster)
        assert cluster.shim.lookups > 0
        goes_on(ranks)
        finish(ranks)
        assert "lost" not in cluster.scheduler.text()


@pytest.mark.parametrize("shards", [1, 40])
def test_a_name_without_an_answer_holds_up_nobody_else(tmp_path, shards):
    """One of two CPU servers advertises a name whose lookup never ends: the job goes on with the other server.

    A link to each of 40 shards takes more lookups than a process has at once.
    """
    with ShimmedCluster(tmp_path, "agent", nodes=2, cpu_servers=2, agent_flags=["--connect-timeout=4s", "--partition-bytes=4KiB"],
                        flags_of_server=lambda index: ["--advertise=never.test", f"--shards={shards}"] if index == 1 else []) as cluster:
        ranks = cluster.start_ranks("rounds.py")
        eventually(lambda: cluster.shim.lookups > 0, 20 * PATIENCE, "a lookup of the name")
        began = time.monotonic()
        for _ in range(3):
            assert cluster.addendctl("why", "job")["job"] == "job"  # the agent answers
        assert time.monotonic() - began < 20 * PATIENCE
        ranks.wait_at("running")
        ranks.open("running")
        goes_on(ranks)
        finish(ranks)
        assert cluster.agents[0].stop(20 * PATIENCE) == 0


def connect(server):
    return socket.create_connection(("127.0.0.1", server.ports["data"]), timeout=10 * PATIENCE)


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.ENOBUFS])
def test_a_server_without_memory_for_a_connection_does_not_spin_and_accepts_again(tmp_path, error):
    with ShimmedCluster(tmp_path, "summation0", nodes=2, cpu_servers=1) as cluster:
        server, shim = cluster.servers[0], cluster.shim
        shim.fail_accept = error
        with connect(server):
            eventually(lambda: shim.accept_calls > 0, 10 * PATIENCE, "a call that fails")
            before, began = shim.accept_calls, time.monotonic()
            time.sleep(1)
            assert shim.accept_calls - before <= 12 * (time.monotonic() - began), "ten in a second"
            shim.fail_watch = 1  # re-arming the watch fails too
            eventually(lambda: shim.watch_calls > 2, 10 * PATIENCE, "attempts to look again")
            shim.fail_accept = shim.fail_watch = 0
            ranks = running(cluster)
            goes_on(ranks)
            finish(ranks)
        assert server.text().count("not accepting connections") <= 2 + 2 * PATIENCE + (time.monotonic() - began)
