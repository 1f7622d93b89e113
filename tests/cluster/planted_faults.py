"""Tests of the tests: each fault that ADDEND_PLANTED_FAULT plants into a build must make them fail.

Not collected by default, since it builds: pytest tests/cluster/planted_faults.py
"""
import os
import subprocess
import sys

import pytest

from tests.support import netns
from tests.support.cluster import BIN_DIR, ROOT, Cluster
from tests.support.processes import eventually
from tests.support.scrape import total

BUILD = ROOT / "build-faults"
JOBS = os.environ.get("ADDEND_JOBS", str(os.cpu_count()))
ATTEMPTS = 6
NUMERICS = "tests/cluster/test_numerics.py"
# The fault, and the whole-cluster tests that must notice it.
FAULTS = {
    "wrong_order": [f"{NUMERICS}::test_result_is_the_sum_in_node_order[3-1-2-1]"],
    "last_element": [f"{NUMERICS}::test_result_is_the_sum_in_node_order[3-1-2-1]"],
    "old_round": [f"{NUMERICS}::test_rounds_do_not_mix", "tests/cluster/test_wire.py::test_result_of_an_old_round_is_not_accepted"],
    "nodes_decide": ["tests/cluster/test_node_loss.py::test_a_node_that_gets_its_results_late_fails_in_the_same_round"],
}
NEED_A_NETWORK = {"nodes_decide"}  # an emulated one, whose results are late


def build(fault):
    for command in (
            ["cmake", "-G", "Ninja", "-B", BUILD, "-S", ROOT, "-DCMAKE_BUILD_TYPE=Release", "-DADDEND_TESTS=OFF", "-DCMAKE_UNITY_BUILD=ON",
             f"-DADDEND_PLANTED_FAULT={fault}"],
            ["cmake", "--build", BUILD, "-j", JOBS, "--target", "addend-scheduler", "addend-summation", "addend-agent"]):
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr


def run_tests(selection):
    environment = {**os.environ, "ADDEND_BIN_DIR": str(BUILD / "bin")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selection]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_noticed(fault):
    if fault in NEED_A_NETWORK and (reason := netns.unavailable()):
        pytest.skip(reason)
    build(fault)
    # A fault that affects a race does not show in every run.
    result = next((result for _ in range(ATTEMPTS) if (result := run_tests(FAULTS[fault])).returncode), None)
    assert result, f"the tests do not notice the planted fault {fault} in {ATTEMPTS} runs"
    assert result.returncode == 1, f"the tests do not run with the planted fault {fault}:\n{result.stdout[-2000:]}"
    assert "AssertionError" in result.stdout or "Failed:" in result.stdout, result.stdout[-2000:]


def test_an_audit_names_the_server_whose_sums_are_wrong(tmp_path):
    """The last element of every sum of a CPU server is wrong, as with faulty memory."""
    build("last_element")
    with Cluster(tmp_path, nodes=2, agent_flags=["--audit-one-in=1", "--partition-bytes=64KiB"]) as cluster:
        cluster.bin_dir = BUILD / "bin"
        faulty = cluster.start_summation()
        cluster.bin_dir = BIN_DIR
        cluster.await_ports(faulty)
        ranks = cluster.start_ranks("paced.py", {"elements": 300_000, "steps": 3, "gate": "done"})
        ranks.wait_at("done")
        agents = cluster.agents.values()
        eventually(lambda: total(agents, "addend_audit_mismatch_total"), 20, "an audit that finds it")
        number = next(server["server_id"] for server in cluster.addendctl("status")["servers"] if not server["colocated"])
        logs = "".join(agent.text() for agent in agents)
        assert f"the result that server {number} gave nodes 0, 1 is another one" in logs
        eventually(lambda: any(event["kind"] == "audit_mismatch" and f"server {number} gave" in event["text"]
                               for event in cluster.addendctl("status")["events"]), 20, "an event that names it")
        ranks.open("done")
        ranks.join()


def test_the_same_tests_pass_without_a_fault():
    """Proves that the failures above come from the faults."""
    build("")
    result = run_tests(sorted({test for tests in FAULTS.values() for test in tests}))
    assert result.returncode == 0, result.stdout[-3000:]
