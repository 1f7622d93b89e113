"""addendctl doctor on the real binaries: it finds no problem in a healthy cluster, and names each problem."""
import json
import os
import signal
import subprocess

import pytest

from tests.support.cluster import BIN_DIR, Cluster, PATIENCE, run_binary
from tests.support.ports import free_port


def doctor(cluster, *flags):
    """The exit status and the checks."""
    result = subprocess.run(
        [BIN_DIR / "addendctl", "doctor", f"--scheduler={cluster.scheduler_address}", "--transport=tcp", "--json", *flags],
        capture_output=True, text=True, timeout=60 * PATIENCE, env=cluster.environment())
    return result.returncode, json.loads(result.stdout)["checks"]


def problems(checks):
    return [check for check in checks if check["verdict"] == "problem"]


def named(checks, name):
    return [check for check in checks if check["name"] == name]


def test_a_healthy_cluster_has_no_problem(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        status, checks = doctor(cluster, f"--socket={cluster.socket(0)}")
        assert status == 0 and problems(checks) == []
        verdicts = {check["name"]: check["verdict"] for check in checks}
        for name in ("scheduler", "clock", "versions", "addresses", "shared memory", "socket"):
            assert verdicts[name] == "ok", checks
        assert len(named(checks, "member")) == 3  # an agent and its colocated server count as one
        assert all("takes data on" in check["found"] for check in named(checks, "member"))
        assert all("at least" in check["found"] for check in named(checks, "bandwidth")), checks


def test_a_stopped_server_is_named(tmp_path):
    with Cluster(tmp_path, cpu_servers=2, scheduler_flags=["--lease=30s"]) as cluster:
        stopped = cluster.servers[1]
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            status, checks = doctor(cluster)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        assert status == 1
        [problem] = problems(checks)
        assert f"127.0.0.1:{stopped.ports['grpc']}" in problem["found"] and "does not answer" in problem["found"]


def test_an_address_without_a_listener_is_named(tmp_path):
    with Cluster(tmp_path, cpu_servers=1, flags_of_server=lambda index: ["--advertise=127.0.0.77", "--listen=127.0.0.1:0"]) as cluster:
        status, checks = doctor(cluster)
        assert status == 1
        [problem] = problems(checks)
        assert f"127.0.0.77:{cluster.servers[0].ports['grpc']}" in problem["found"]
        assert "--advertise" in problem["advice"]


def test_too_little_memory_is_reported_with_the_required_amount(tmp_path):
    with Cluster(tmp_path) as cluster:
        flags = ["--model-bytes=100MiB", "--local-size=4", "--bandwidth-probe=0"]
        status, checks = doctor(cluster, "--memory=64MiB", *flags)
        assert status == 1
        [problem] = problems(checks)
        assert problem["name"] == "memory" and "828Mi" in problem["advice"]  # 7 x 100 MiB + 128 MiB
        assert doctor(cluster, "--memory=828MiB", *flags)[0] == 0


def test_a_socket_without_an_agent_is_a_problem(tmp_path):
    with Cluster(tmp_path) as cluster:
        status, checks = doctor(cluster, f"--socket={tmp_path}/none.sock", "--bandwidth-probe=0")
        assert status == 1 and "none.sock" in problems(checks)[0]["found"]


def test_a_wrong_scheduler_ends_with_76_after_the_checks_of_this_machine():
    result = run_binary("addendctl", "doctor", f"--scheduler=127.0.0.1:{free_port()}", "--json")
    assert result.returncode == 76
    assert "does not answer" in result.stderr
    checks = json.loads(result.stdout)["checks"]
    assert named(checks, "scheduler")[0]["verdict"] == "problem"
    assert named(checks, "shared memory")[0]["verdict"] == "ok"


def test_a_standby_scheduler_is_not_a_problem(tmp_path):
    with Cluster(tmp_path, schedulers=2) as cluster:
        status, checks = doctor(cluster, "--bandwidth-probe=0")
        assert status == 0, problems(checks)
        assert "stands by" in named(checks, "scheduler")[0]["found"]


def test_the_table_for_people_has_advice(tmp_path):
    with Cluster(tmp_path) as cluster:
        result = run_binary("addendctl", "doctor", f"--scheduler={cluster.scheduler_address}", "--memory=1MiB",
                            "--model-bytes=1GB", "--bandwidth-probe=0")
        assert result.returncode == 1
        assert "PROBLEM" in result.stdout and "-> set the memory limit to at least" in result.stdout
        assert result.stdout.rstrip().splitlines()[-1].startswith("1 problem")


@pytest.mark.parametrize("flag,words", [("--transport=pigeon", "use auto, tcp or rdma"), ("--bandwidth-probe=1GB", "at most 64MiB"),
                                        ("--local-size=5000", "from 1 to 1024")])
def test_wrong_flags_are_refused(flag, words):
    result = run_binary("addendctl", "doctor", flag)
    assert result.returncode == 64 and words in result.stderr
