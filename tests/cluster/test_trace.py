"""addendctl trace: a job is slowed at a known place, and the summary names that place; all partitions are on a common clock."""
import collections
import contextlib
import json
import os
import signal
import subprocess

import pytest

from tests.support import netns
from tests.support.cluster import PATIENCE, SANITIZED, Cluster
from tests.support.processes import eventually

ELEMENTS = 1_000_000  # 4 MB
QUICK = {"elements": ELEMENTS, "steps": 6, "compute_s": 0.02, "gate": "done"}


def summary(cluster):
    return cluster.addendctl("trace", f"--job={cluster.job}", "--rounds=5", "--summary")


@contextlib.contextmanager
def after_rounds(cluster, parameters):
    """Runs the body when the trainers have run their rounds and still exist."""
    ranks = cluster.start_ranks("paced.py", parameters)
    ranks.wait_at("done")
    yield
    ranks.open("done")
    ranks.join()


def test_a_rank_whose_computation_is_late_is_named(tmp_path):
    with Cluster(tmp_path, nodes=3, local_size=2, cpu_servers=1) as cluster:
        with after_rounds(cluster, {**QUICK, "late_rank": 3, "late_s": 0.3}):
            found = summary(cluster)
        assert found["bottleneck"]["cause"] == "compute", found
        assert found["bottleneck"]["number"] == 3
        assert found["bottleneck"]["own_s"] == pytest.approx(0.3, abs=0.1)
        assert "rank 3 (node 1" in found["sentence"]


def test_a_node_whose_copies_are_slow_is_named(tmp_path):
    """Copies to shared memory stand for copies over PCIe: 1 MB at 2 MB/s takes 0.5 s, far longer than even a sanitizer's sums."""
    with Cluster(tmp_path, nodes=3, cpu_servers=1) as cluster:
        with after_rounds(cluster, {**QUICK, "elements": 250_000, "slow_copies_of_rank": 1, "copies_bytes_per_s": 2e6}):
            found = summary(cluster)
        assert found["bottleneck"]["cause"] == "intra_node", found
        assert found["bottleneck"]["number"] == 1
        assert found["bottleneck"]["own_s"] == pytest.approx(0.5, abs=0.1)
        assert "node 1" in found["sentence"] and "PCIe" in found["sentence"]


@pytest.fixture(scope="module")
def network():
    if reason := netns.unavailable():
        pytest.skip(reason)
    with netns.Network(5, "200mbit") as network:
        yield network


@contextlib.contextmanager
def slowed(tmp_path, network, host):
    """Three nodes on hosts 1 to 3 and two CPU servers on 4 and 5; the link of a host has a fifth of its planned bandwidth."""
    network.limit(host, "40mbit")
    try:
        with Cluster(tmp_path, nodes=3, cpu_servers=2, network=network, scheduler_flags=["--noreact-to-stragglers"],
                     agent_flags=["--bandwidth=200Mbps"], summation_flags=["--bandwidth=200Mbps"]) as cluster:
            with after_rounds(cluster, QUICK):
                yield cluster
    finally:
        network.limit(host, "200mbit")


def test_a_server_whose_link_is_slow_is_named(tmp_path, network):
    with slowed(tmp_path, network, host=5) as cluster:
        server = next(one for one in cluster.addendctl("status")["servers"] if network.address(5) in one["control_address"])
        found = summary(cluster)
        assert found["bottleneck"]["cause"] == "server_link", found
        assert found["bottleneck"]["number"] == server["server_id"]
        assert f"summation server {server['server_id']}" in found["sentence"]


def test_a_node_whose_link_is_slow_is_named(tmp_path, network):
    with slowed(tmp_path, network, host=2) as cluster:
        found = summary(cluster)
        assert found["bottleneck"]["cause"] == "node_link", found
        assert found["bottleneck"]["number"] == 1
        assert "the link of node 1" in found["sentence"]


@pytest.mark.skipif(SANITIZED == "asan", reason="the address sanitizer's sums are so slow that the server with the larger part does stand out")
def test_no_bottleneck_is_named_without_an_outlier(tmp_path, network):
    with Cluster(tmp_path, nodes=3, cpu_servers=2, network=network, agent_flags=["--bandwidth=200Mbps"],
                 summation_flags=["--bandwidth=200Mbps"]) as cluster:
        with after_rounds(cluster, QUICK):
            found = summary(cluster)
        assert found["bottleneck"] is None, found
        assert found["steps"] >= 4 and found["step_s"] > 0


def trace_of(cluster, *flags):
    command = [cluster.bin_dir / "addendctl", "trace", f"--job={cluster.job}", f"--scheduler={cluster.scheduler_address}", *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, env=cluster.environment())
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_the_trace_holds_every_partition_of_the_rounds_asked_for_on_all_nodes_and_servers(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        with after_rounds(cluster, QUICK):
            trace, text = trace_of(cluster, "--rounds=3")
        events = trace["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert sum(name.startswith("node ") for name in names.values()) == 2
        assert sum(name.startswith("summation server") for name in names.values()) >= 2  # the CPU server, and those in the agents
        assert all(span["dur"] >= 0 and span["ts"] >= 0 for span in spans)
        rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        pulled = collections.defaultdict(set)  # node -> (partition, round)
        for span in spans:
            if rows[span["pid"], span["tid"]].startswith("pull"):
                pulled[span["pid"]].add((span["args"]["partition"], span["args"]["round"]))
        first, second = pulled.values()
        assert first == second, "both nodes pull the same partitions"
        assert {round_ for _, round_ in first} == {4, 5, 6}
        # Spans in a row do not overlap: overlapping spans are in separate rows.
        for row in set(rows):
            ends = 0
            for span in sorted((s for s in spans if (s["pid"], s["tid"]) == row), key=lambda s: s["ts"]):
                assert span["ts"] >= ends - 0.002, (rows[row], span)  # for rounding of nanoseconds to microseconds
                ends = span["ts"] + span["dur"]
        # An arrow has a single beginning and a single end.
        flows = collections.Counter((event["id"], event["ph"]) for event in events if event["ph"] in "sf")
        assert flows and all(count == 1 for count in flows.values())
        assert {identity for identity, phase in flows if phase == "s"} == {identity for identity, phase in flows if phase == "f"}
        assert "steps" in text and "Clocks are known to" in text


def test_processes_with_other_clocks_are_brought_onto_one(tmp_path):
    """The CPU server's clock is an hour ahead, as on another machine: no event precedes its cause by more than the stated error."""
    probe = subprocess.run(["unshare", "--time", "--monotonic", "3600", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"this kernel gives no clock of its own to a process: {probe.stderr.strip()}")
    with Cluster(tmp_path, nodes=2, cpu_servers=0) as cluster:
        flags = [f"--scheduler={cluster.scheduler_address}", "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0", "--advertise=127.0.0.1",
                 "--http=127.0.0.1:0", "--health-listen=127.0.0.1:0", f"--port-file={tmp_path / 'ahead.ports'}"]
        ahead = cluster.start("ahead", ["unshare", "--time", "--fork", "--monotonic", "3600", cluster.bin_dir / "addend-summation", "--insecure", *flags])
        eventually(lambda: len(cluster.addendctl("status")["servers"]) == 3, 10 * PATIENCE, "the server with a clock of its own")
        with after_rounds(cluster, QUICK):
            trace, _ = trace_of(cluster)
        os.killpg(ahead.pid, signal.SIGTERM)  # unshare itself ignores it
        error_us = trace["otherData"]["clock_error_us"]
        assert 0 < error_us < 50_000
        begins = {event["id"]: event["ts"] for event in trace["traceEvents"] if event["ph"] == "s"}
        ends = {event["id"]: event["ts"] for event in trace["traceEvents"] if event["ph"] == "f"}
        assert begins
        assert all(ends[flow] >= begin - 2 * error_us for flow, begin in begins.items())
        last = max(event["ts"] for event in trace["traceEvents"] if event["ph"] == "X")
        assert last < 60e6, "an hour is not left in it"


def test_a_member_that_does_not_answer_is_named_and_the_others_are_shown(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        with after_rounds(cluster, QUICK):
            cluster.servers[0].signal(signal.SIGSTOP)
            trace, text = trace_of(cluster, "--timeout=1s")
            cluster.servers[0].signal(signal.SIGCONT)
        assert len(trace["otherData"]["did_not_answer"]) == 1 and "summation server" in trace["otherData"]["did_not_answer"][0]
        assert "Did not answer: summation server" in text


def test_an_unknown_job_is_refused_with_the_names_there_are(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster:
        command = [cluster.bin_dir / "addendctl", "trace", "--job=other", f"--scheduler={cluster.scheduler_address}"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert result.returncode == 64
        assert "no job 'other'; it has 'job'" in result.stderr
