"""Two schedulers share an etcd: one leads, and its end does not disturb the job."""
import re
import signal

import pytest

from tests.support import etcd
from tests.support.cluster import Cluster, PATIENCE
from tests.support.grpc_process import health
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

pytestmark = pytest.mark.skipif(bool(etcd.unavailable()), reason=etcd.unavailable())


def next_leader(cluster, former):
    eventually(lambda: cluster.schedulers[1 - former].port_file.exists(), 30 * PATIENCE, "the other scheduler to lead")


def is_serving(scheduler, service):
    """The answer of grpc.health.v1 on the health-only port: the service "" stands for alive, "readiness" for leading."""
    port = re.search(r"health checks on port (\d+)", scheduler.log.read_text())[1]
    return {"SERVING": True, "NOT_SERVING": False}[health(f"127.0.0.1:{port}", service)]


def test_a_standby_is_alive_and_not_ready(tmp_path):
    with Cluster(tmp_path, nodes=1, schedulers=2, scheduler_flags=["--lease=3s"]) as cluster:
        former = cluster.leader()
        leader, other = cluster.schedulers[former], cluster.schedulers[1 - former]
        assert is_serving(leader, "") and is_serving(leader, "readiness")
        eventually(lambda: "health checks" in other.log.read_text(), 10 * PATIENCE, "the other one to stand by")
        assert is_serving(other, "") and not is_serving(other, "readiness")
        leader.signal(signal.SIGTERM)
        next_leader(cluster, former)
        assert is_serving(other, "readiness")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_other_scheduler_takes_over(tmp_path, number):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, schedulers=2, scheduler_flags=["--lease=3s"]) as cluster:
        ranks = running(cluster)
        former = cluster.leader()
        cluster.schedulers[former].signal(number)
        goes_on(ranks)  # there is no leader yet, and no rank needs it
        next_leader(cluster, former)
        # The new leader knows the job and its owners: a server that joins gets its share, a lost server is recovered.
        joined = cluster.start_summation()
        cluster.await_ports(joined)
        eventually(lambda: "is in force" in cluster.schedulers[1 - former].log.read_text(), 10 * PATIENCE, "a change by the new leader")
        joined.kill()
        goes_on(ranks)
        cluster.start_one_scheduler(former)
        goes_on(ranks)
        finish(ranks)


def test_a_leader_that_was_suspended_does_no_harm(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2, schedulers=2, scheduler_flags=["--lease=3s"]) as cluster:
        ranks = running(cluster)
        former = cluster.leader()
        cluster.schedulers[former].signal(signal.SIGSTOP)
        next_leader(cluster, former)
        cluster.servers[0].kill()
        goes_on(ranks)
        cluster.schedulers[former].signal(signal.SIGCONT)
        assert cluster.schedulers[former].wait(20 * PATIENCE) == 75
        assert "stands by" in cluster.schedulers[former].log.read_text()
        goes_on(ranks)
        finish(ranks)


def test_without_etcd_the_job_goes_on(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, schedulers=2, scheduler_flags=["--lease=3s"]) as cluster:
        ranks = running(cluster)
        cluster.etcd.kill()
        for scheduler in cluster.schedulers:
            eventually(lambda: scheduler.returncode is not None or "cannot lead" in scheduler.log.read_text(), 30 * PATIENCE,
                       f"{scheduler.name} to notice")
        goes_on(ranks)
        finish(ranks)
