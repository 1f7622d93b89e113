"""deploy/helm/addend/files/check.py, which `helm test` runs, against a cluster of the real binaries."""
import os
import signal
import subprocess

import pytest

from tests.support.cluster import BIN_DIR, PATIENCE, PYTHON, ROOT, Cluster, run_binary

CHECK = ROOT / "deploy" / "helm" / "addend" / "files" / "check.py"


@pytest.fixture(name="cluster", scope="module")
def _cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("check"), nodes=2, cpu_servers=1) as cluster:
        yield cluster


def check(cluster, folder, *flags, scheduler=None, timeout=60, addendctl="", patch=""):
    """Runs it as the test pod does. `addendctl`: shell that stands in for some commands; `patch`: Python run in each process."""
    path = folder / "bin"
    path.mkdir()
    (path / "addendctl").write_text(f'#!/bin/sh\n{addendctl}\nexec "{BIN_DIR / "addendctl"}" "$@"\n')
    (path / "addendctl").chmod(0o755)
    (folder / "sitecustomize.py").write_text(patch)
    environment = cluster.rank_environment(0, PATH=f"{path}:{os.environ['PATH']}")
    environment["PYTHONPATH"] = f"{folder}:{environment['PYTHONPATH']}"
    command = [PYTHON, CHECK, f"--scheduler={scheduler or cluster.scheduler_address}", f"--timeout={timeout * PATIENCE}", *flags,
               *(str(cluster.socket(node)) for node in range(cluster.nodes))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=4 * timeout * PATIENCE, check=False)


def test_it_passes_on_a_healthy_cluster_and_says_what_it_did(cluster, tmp_path):
    answer = check(cluster, tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    last = answer.stdout.splitlines()[-1]
    assert last.startswith("2 nodes, 48 rounds, bit for bit as NumPy sums; 1 CPU servers summed ")
    assert len(last.rsplit("sha256 ", 1)[1]) == 64


def test_it_runs_doctor_first_and_fails_with_it(cluster, tmp_path):
    answer = check(cluster, tmp_path, addendctl='[ "$1" = doctor ] && { echo "problem: planted"; exit 1; }')
    assert answer.returncode == 1
    assert answer.stdout.startswith("problem: planted\n")
    assert "addendctl doctor ended with status 1" in answer.stderr


def test_it_notices_a_single_wrong_bit(cluster, tmp_path):
    """All ranks get equal results, so that only the comparison with NumPy can find the error."""
    answer = check(cluster, tmp_path, patch="""
import addend
sums = addend.push_pull
def push_pull(array, name, **options):
    result = sums(array, name, **options)
    if name == "check.float32.65536":
        result.view("uint32")[7] ^= 1
    return result
addend.push_pull = push_pull
""")
    assert answer.returncode == 1
    assert "1 of 65536 elements of float32 differ from NumPy's sum in round 0; the first is element 7" in answer.stderr


def test_it_notices_that_the_installed_servers_do_nothing(cluster, tmp_path):
    idle = '{"servers": [{"server_id": 1, "colocated": false, "traffic": {"payload_bytes_summed": 5}}]}'
    answer = check(cluster, tmp_path, addendctl=f"""[ "$1" = status ] && {{ echo '{idle}'; exit 0; }}""")
    assert answer.returncode == 1
    assert "1 CPU servers summed no byte of the job" in answer.stderr


def test_it_does_not_wait_for_ever_for_a_node(cluster, tmp_path):
    cluster.agents[1].signal(signal.SIGSTOP)
    try:
        answer = check(cluster, tmp_path, timeout=3, addendctl='[ "$1" = doctor ] && exit 0')
    finally:
        cluster.agents[1].signal(signal.SIGCONT)
    assert answer.returncode == 1
    assert "The job did not end within" in answer.stderr


def test_a_wrong_address_of_the_scheduler_is_named(cluster, tmp_path):
    answer = check(cluster, tmp_path, scheduler="127.0.0.1:9", addendctl='[ "$1" = doctor ] && exit 76')
    assert answer.returncode == 1
    assert "is 127.0.0.1:9 the scheduler's address?" in answer.stderr


def test_its_test_knows_the_fields_of_status(cluster):
    answer = run_binary("addendctl", "status", "--json", f"--scheduler={cluster.scheduler_address}")
    assert '"payload_bytes_summed"' in answer.stdout and '"colocated"' in answer.stdout
