"""A real Prometheus scrapes clusters of the real binaries: every panel has data, and incidents are named for what they are.

Windows and `for` are a thirtieth as long as in the chart (tests/support/monitoring.py); thresholds are the chart's.
"""
import contextlib
import re
import signal
import subprocess
import threading
import urllib.request

import pytest

from tests.support import netns
from tests.support.cluster import Cluster, PATIENCE
from tests.support.monitoring import Prometheus, alerts, annotations, filled, panels, variable_metrics
from tests.support.processes import eventually
from tests.support.rounds import running

pytestmark = [pytest.mark.full, pytest.mark.timing]

BYTES = 8_000_000

# What a healthy cluster without containers, RDMA or asynchronous tensors has nothing of.
EMPTY_WHEN_ALL_IS_WELL = {
    "addend_agent_memory_limit_bytes": "only in a container",
}


@pytest.fixture
def size():
    """Nodes, ranks on each."""
    return 2, 1


@pytest.fixture
def cluster(tmp_path, size):
    with Cluster(tmp_path, *size, cpu_servers=2, scheduler_flags=["--lease=3s"],
                 agent_flags=["--bandwidth=10Gbps", "--audit-one-in=1"],
                 summation_flags=["--bandwidth=10Gbps", "--memory-limit=1GiB"]) as cluster:
        yield cluster


@pytest.fixture
def ranks(cluster):
    return running(cluster, "monitored.py", bytes=BYTES)


@pytest.fixture
def prometheus(cluster, ranks, tmp_path):
    with Prometheus(cluster, tmp_path) as prometheus:
        yield prometheus


@contextlib.contextmanager
def stuttering(process, stopped_s, running_s):
    """Stops and continues a process all the time, as a machine that has too much else to do."""
    done = threading.Event()

    def stutter():
        while not done.wait(running_s):
            process.signal(signal.SIGSTOP)
            done.wait(stopped_s)
            process.signal(signal.SIGCONT)

    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def expected_somewhere(expr):
    return not any(name in expr for name in EMPTY_WHEN_ALL_IS_WELL)


def test_every_panel_of_the_dashboards_has_data(prometheus, ranks):
    ranks.open("nan")  # a panel for it is empty as long as there is none
    wanted = {filled(target["expr"], job_name="job"): f"{board}: {panel['title']}: {target['expr']}"
              for board, panel in panels() for target in panel["targets"] if expected_somewhere(target["expr"])}
    wanted.update({filled(metric, job_name="job"): f"variable: {metric}" for metric in variable_metrics()})
    seen = set()

    def all_seen():
        seen.update(expr for expr in wanted if expr not in seen and prometheus.query(expr))
        return len(seen) == len(wanted)
    try:
        eventually(all_seen, 60 * PATIENCE, "data in every panel", interval=1)
    except AssertionError:
        pytest.fail("no data in\n" + "\n".join(sorted(title for expr, title in wanted.items() if expr not in seen)))


def test_every_expression_evaluates_and_no_alert_fires_without_a_reason(prometheus):
    for _, expr in annotations():
        prometheus.query(filled(expr, job_name="job"))
    eventually(lambda: prometheus.query("addend:job_efficiency:ratio_rate5m"), 30 * PATIENCE, "the first recorded rates")

    def evaluated():
        return [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
    eventually(lambda: all(rule["health"] != "unknown" for rule in evaluated()), 30 * PATIENCE, "an evaluation of every rule")
    assert [f"{rule['name']}: {rule['lastError']}" for rule in evaluated() if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in evaluated() if rule["type"] == "alerting"} == {rule["alert"] for rule in alerts()}
    for name in ("AddendJobStalled", "AddendRankLate", "AddendSchedulerWithoutLeader", "AddendMemberLost", "AddendNonFinite",
                 "AddendAuditMismatch", "AddendPlanVersionsDiffer", "AddendServerMemoryNearLimit", "AddendRdmaFellBack"):
        assert not prometheus.firing(name), name


def test_what_every_service_exports_follows_prometheus_conventions(prometheus):
    for target in prometheus.targets():
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
            result = subprocess.run(["promtool", "check", "metrics"], input=answer.read().decode(), capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("size", [(2, 1), (1, 2)], ids=["awaited by servers", "awaited by its own agent alone"])
def test_a_rank_that_stops_stalls_its_job_and_its_node_is_named(prometheus, ranks, size):
    eventually(lambda: prometheus.query("addend:agent:info"), 30 * PATIENCE, "the first scrape of the agents")
    ranks.processes[1].signal(signal.SIGSTOP)
    node = str(size[0] - 1)
    firing = prometheus.await_alert("AddendJobStalled", timeout=100, job_name="job", node=node)
    assert [labels["node"] for labels in firing] == [node], "whoever waits is not to blame"
    text = next(one["annotations"]["summary"] for one in prometheus.api("alerts")["alerts"] if one["labels"]["alertname"] == "AddendJobStalled")
    assert text == f"Job job stands still, waiting for node {node}"
    ranks.processes[1].signal(signal.SIGCONT)
    prometheus.await_silence("AddendJobStalled")


def test_a_rank_that_stutters_makes_its_node_late(prometheus, ranks):
    with stuttering(ranks.processes[1], stopped_s=0.4, running_s=0.4):
        firing = prometheus.await_alert("AddendRankLate", timeout=90, job_name="job", node="1")
    assert [labels["node"] for labels in firing] == ["1"]


def test_a_nan_is_reported_with_its_rank(prometheus, ranks):
    ranks.open("nan")
    firing = prometheus.await_alert("AddendNonFinite", job_name="job", rank="1")
    assert [labels["rank"] for labels in firing] == ["1"]


def test_a_server_that_is_killed_is_reported_and_one_that_is_drained_is_not(prometheus, cluster):
    cluster.servers[0].signal(signal.SIGTERM)
    assert cluster.servers[0].wait(30 * PATIENCE) == 0
    eventually(lambda: prometheus.query('addend_scheduler_members{role="cpu_server"} == 1'), 30 * PATIENCE, "the scrape that shows it")
    assert not prometheus.firing("AddendMemberLost")
    cluster.servers[1].kill()
    firing = prometheus.await_alert("AddendMemberLost", role="cpu_server")
    assert [labels["role"] for labels in firing] == ["cpu_server"]


def test_a_cluster_without_its_scheduler_has_no_leader(prometheus, cluster):
    eventually(lambda: prometheus.query("addend_scheduler_leader == 1"), 30 * PATIENCE, "a leader")
    cluster.scheduler.kill()
    prometheus.await_alert("AddendSchedulerWithoutLeader")
    cluster.start_scheduler()


def test_a_server_whose_link_is_slow_is_named(tmp_path):
    if reason := netns.unavailable():
        pytest.skip(reason)
    flags = ["--bandwidth=200Mbps", "--http=:0"]  # Prometheus is on another host than they are
    with netns.Network(4, "200mbit") as network, Cluster(
            tmp_path, nodes=2, cpu_servers=2, network=network, scheduler_flags=["--lease=3s"], agent_flags=flags,
            summation_flags=flags) as cluster:
        running(cluster, "monitored.py", bytes=BYTES)
        slow = cluster.servers[0]
        number = next(str(server["server_id"]) for server in cluster.addendctl("status")["servers"]
                      if re.match(re.escape(network.address(slow.host)) + ":", server["control_address"]))
        with Prometheus(cluster, tmp_path) as prometheus:
            eventually(lambda: len(prometheus.query("addend_server_speed_ratio == 1")) == 2, 30 * PATIENCE, "two servers of full speed")
            network.limit(slow.host, "40mbit")
            firing = prometheus.await_alert("AddendSlowServer", timeout=120, server=number)
            assert [labels["server"] for labels in firing] == [number]
