"""An upgrade without stopping the jobs: every CPU server and every scheduler is replaced by a new process while a job runs.

Every round's bits are compared with the reference, and no rank sees an error."""
import signal

import pytest

from tests.support import etcd
from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

SERVERS = 3
STEADY = ["--noreact-to-stragglers"]  # only joining and leaving servers change the shares
LOST = ("was lost", "have new owners", "has new owners", "has failed")


def cpu_servers(cluster):
    """Number and share of the bytes of each CPU server."""
    shares = {share["server_id"]: share["assigned"] for share in cluster.addendctl("jobs")[0]["shares"]}
    return {server["server_id"]: shares.get(server["server_id"], 0)
            for server in cluster.addendctl("status")["servers"] if not server["colocated"]}


def replace_servers(cluster, ranks):
    """Replaces the servers one by one: a new server joins and has its share before its predecessor leaves."""
    for index, former in enumerate(cluster.servers):
        former.signal(signal.SIGTERM)
        assert former.wait(20 * PATIENCE) == 0
        assert "drained: no job needs this server any more" in former.text()
        goes_on(ranks)
        cluster.servers[index] = cluster.start_summation()
        cluster.await_ports(cluster.servers[index])
        eventually(lambda: sum(share > 0.02 for share in cpu_servers(cluster).values()) == SERVERS, 10 * PATIENCE,
                   "a share for the new server")
        goes_on(ranks)


def nothing_was_lost(cluster, ranks):
    finish(ranks)
    for process in cluster.processes:
        if process.name.startswith(("scheduler", "agent", "summation")):
            for what in LOST:
                assert what not in process.text(), f"{process.name}: {what}"


def test_servers_then_the_scheduler(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=SERVERS, shards=2, store=f"sqlite:{tmp_path}/scheduler.db",
                 scheduler_flags=STEADY) as cluster:
        ranks = running(cluster)
        replace_servers(cluster, ranks)
        before = cpu_servers(cluster)

        assert cluster.scheduler.stop(10 * PATIENCE) == 0
        goes_on(ranks, rounds=20, what="further rounds without a scheduler")
        cluster.start_scheduler()
        eventually(lambda: cpu_servers(cluster) == before, 10 * PATIENCE, "the same servers with the same shares")
        goes_on(ranks)
        # The new scheduler works: it moves the partitions of the old servers.
        replace_servers(cluster, ranks)
        assert not before.keys() & cpu_servers(cluster).keys()
        nothing_was_lost(cluster, ranks)


@pytest.mark.skipif(bool(etcd.unavailable()), reason=etcd.unavailable())
def test_servers_then_several_schedulers_that_share_an_etcd(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=SERVERS, schedulers=2, scheduler_flags=STEADY) as cluster:
        ranks = running(cluster)
        replace_servers(cluster, ranks)
        before = cpu_servers(cluster)
        former = cluster.leader()
        # The standby first, so that leadership moves once.
        assert cluster.schedulers[1 - former].stop(10 * PATIENCE) == 0
        cluster.start_one_scheduler(1 - former)
        eventually(lambda: "standing by" in cluster.schedulers[1 - former].text(), 10 * PATIENCE, "the new one to stand by")
        goes_on(ranks)
        assert cluster.schedulers[former].stop(10 * PATIENCE) == 0
        eventually(lambda: cluster.schedulers[1 - former].port_file.exists(), 30 * PATIENCE, "the new one to lead")
        cluster.start_one_scheduler(former)
        eventually(lambda: cpu_servers(cluster) == before, 10 * PATIENCE, "the same servers with the same shares")
        goes_on(ranks)
        replace_servers(cluster, ranks)
        nothing_was_lost(cluster, ranks)


def test_the_last_server_of_a_job_without_colocated_ones_waits_for_its_successor(tmp_path):
    """The only summing server is replaced without loss too: its successor joins first."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, agent_flags=["--colocated-summation=false"]) as cluster:
        ranks = running(cluster)
        former = cluster.servers[0]
        former.signal(signal.SIGTERM)
        goes_on(ranks)
        assert former.returncode is None, "it cannot go: nobody else could sum"
        cluster.await_ports(cluster.start_summation())
        assert former.wait(20 * PATIENCE) == 0
        nothing_was_lost(cluster, ranks)
