"""The time that each service takes to end after SIGTERM, in every state of the others: the table in docs/operations.md."""
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest

from tests.support import etcd, grpc_process
from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import goes_on, running

SCHEDULER_S, SUMMATION_S, AGENT_S = 3, 2, 5  # the summation server's is for a server without partitions


def ends_within(process, limit):
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait(60 * PATIENCE) == 0, process.tail()
    assert time.monotonic() - began < limit * PATIENCE, f"{process.name} took {time.monotonic() - began:.1f} s"


def stand_still(*processes):
    for process in processes:
        process.signal(signal.SIGSTOP)


def test_idle_services_end_at_once(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        ends_within(cluster.agents[0], AGENT_S)
        ends_within(cluster.servers[0], SUMMATION_S)
        ends_within(cluster.scheduler, SCHEDULER_S)


def test_idle_members_end_without_their_scheduler(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        cluster.scheduler.kill()
        ends_within(cluster.agents[0], AGENT_S)
        ends_within(cluster.servers[0], SUMMATION_S)


def test_idle_members_end_while_their_scheduler_stands_still(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        stand_still(cluster.scheduler)
        ends_within(cluster.agents[0], AGENT_S)
        ends_within(cluster.servers[0], SUMMATION_S)


def test_a_server_that_a_job_needs_waits_for_drain_timeout_at_most(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, summation_flags=["--drain-timeout=3s"]) as cluster:
        ranks = running(cluster)
        stand_still(cluster.scheduler)
        ends_within(cluster.servers[0], 3 + SUMMATION_S)
        cluster.scheduler.signal(signal.SIGCONT)
        goes_on(ranks)  # recovered, as after a loss


def test_services_of_a_running_job_end_while_all_others_stand_still(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2, summation_flags=["--drain-timeout=1s"]) as cluster:
        ranks = running(cluster)
        stand_still(cluster.agents[1], cluster.servers[1], *ranks.processes.values())
        ends_within(cluster.agents[0], AGENT_S)
        ends_within(cluster.servers[0], 1 + SUMMATION_S)
        ends_within(cluster.scheduler, SCHEDULER_S)


@pytest.mark.parametrize("scheduler", ["absent", "hanging"])
def test_members_that_are_still_starting_end_with_status_0(tmp_path, scheduler):
    with Cluster(tmp_path, nodes=1) as cluster, socket.create_server(("127.0.0.1", 0)) as hanging:
        if scheduler == "absent":
            hanging.close()
        else:
            cluster.scheduler_address = "127.0.0.1:%d" % hanging.getsockname()[1]  # accepts connections, and sends nothing
        cluster.agents[0].kill()  # its socket is needed
        cluster.scheduler.kill()
        agent, server = cluster.start_agent(0, name="late"), cluster.start_summation()
        for process in (agent, server):
            eventually(lambda: "has not answered" in process.text(), 20 * PATIENCE, f"{process.name} to look for the scheduler")
        ends_within(agent, AGENT_S)
        ends_within(server, SUMMATION_S)


@pytest.mark.skipif(bool(etcd.unavailable()), reason=etcd.unavailable())
def test_schedulers_end_while_etcd_stands_still(tmp_path):
    with Cluster(tmp_path, nodes=1, schedulers=2) as cluster:
        leader = cluster.leader()
        eventually(lambda: "standing by" in cluster.schedulers[1 - leader].text(), 10 * PATIENCE, "the other one to stand by")
        stand_still(cluster.etcd)
        ends_within(cluster.schedulers[leader], SCHEDULER_S)
        ends_within(cluster.schedulers[1 - leader], SCHEDULER_S)


class Clients(grpc_process.Clients):
    """Connections to a service that do not end by themselves: half an HTTP request, half a gRPC preface, open streams."""

    def __init__(self, service):
        super().__init__(service.ports["grpc"], service.ports["health"])
        self.kept = []
        for port, words in [("http", b"GET /metr"), ("grpc", b"PRI * HTT"), ("health", b"")]:
            for _ in range(4):
                connection = socket.create_connection(("127.0.0.1", service.ports[port]), timeout=10)
                connection.sendall(words)
                self.kept.append(connection)


def test_open_connections_and_streams_do_not_delay_shutdown(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        for service, limit in [(cluster.agents[0], AGENT_S), (cluster.servers[0], SUMMATION_S), (cluster.scheduler, SCHEDULER_S)]:
            with Clients(service):
                ends_within(service, limit)


def is_ready(service):
    """The results of both probes: HTTP's, and gRPC's on the health-only port."""
    try:
        http = urllib.request.urlopen(f"http://127.0.0.1:{service.ports['http']}/readyz", timeout=10).status == 200
    except urllib.error.HTTPError:
        http = False
    return http, grpc_process.health(f"127.0.0.1:{service.ports['health']}", "readiness") == "SERVING"


def test_a_service_that_ends_is_not_ready_from_the_first_moment(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, agent_flags=["--colocated-summation=false"]) as cluster:
        ranks = running(cluster)
        server = cluster.servers[0]
        assert is_ready(server) == (True, True)
        server.signal(signal.SIGTERM)  # it has to stay: no other server could sum
        eventually(lambda: is_ready(server) == (False, False), 10 * PATIENCE, "both probes to say that it is not ready")
        goes_on(ranks)
        assert server.returncode is None
