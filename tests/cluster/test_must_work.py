"""Supported uses."""
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from tests.support.cluster import BIN_DIR, Cluster, PATIENCE, PYTHON, ROOT, TRAINERS
from tests.support.launched import TORCHRUN_FLAGS, skip_without_torchrun
from tests.support.ports import free_port
from tests.support.processes import eventually


def available_bytes():
    with open("/proc/meminfo") as meminfo:
        return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable"))


# ---- tensors ----
def test_odd_tensors(tmp_path):
    """Zero-length, scalar and non-contiguous tensors, any UTF-8 name, broadcast and barrier."""
    with Cluster(tmp_path, 2, 2, 1) as cluster:
        for outcome in cluster.run_ranks("odd_tensors.py"):
            assert outcome.result["checks"] == "all right"


def test_non_contiguous_torch_tensor(tmp_path):
    with Cluster(tmp_path, 2, 1, 0) as cluster:
        for outcome in cluster.run_ranks("torch_tensors.py"):
            assert outcome.result["checks"] == "all right"


def test_names_first_pushed_in_different_orders(tmp_path):
    with Cluster(tmp_path, 4, 1, 2) as cluster:
        for outcome in cluster.run_ranks("orders.py", {"tensors": 20, "elements": 3000, "rounds": 3, "pause_s": 0.002}):
            assert outcome.result["right"]


def test_an_undeclared_name_can_return_with_another_shape(tmp_path):
    with Cluster(tmp_path, 2, 2, 1) as cluster:
        for outcome in cluster.run_ranks("undeclare.py"):
            assert outcome.result["checks"] == "all right"


@pytest.mark.full
@pytest.mark.big
def test_five_gigabytes_on_one_node(tmp_path):
    if available_bytes() < 14e9:
        pytest.skip("less than 14 GB of memory are free")
    with Cluster(tmp_path, 1, 1, 0) as cluster:
        outcome, = cluster.run_ranks("huge.py", {"bytes": 5_000_000_000, "in_place": True}, timeout=300)
        assert outcome.result["right"]


@pytest.mark.full
@pytest.mark.big
def test_one_gigabyte_on_two_nodes(tmp_path):
    if available_bytes() < 12e9:
        pytest.skip("less than 12 GB of memory are free")
    with Cluster(tmp_path, 2, 1, 0) as cluster:
        for outcome in cluster.run_ranks("huge.py", {"bytes": 1_000_000_000}, timeout=300):
            assert outcome.result["right"]


# ---- how trainers are started ----
def test_torchrun_starts_the_ranks_of_a_node(tmp_path):
    skip_without_torchrun()
    with Cluster(tmp_path, 2, 2, 1) as cluster:
        folder = cluster.folder / "torchrun"
        folder.mkdir()
        (folder / "parameters.json").write_text('{"steps": 5}')
        launchers = []
        port = free_port()
        for node in range(2):
            env = cluster.rank_environment(node * 2, ADDEND_TEST_FOLDER=folder)
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
                del env[name]
            launchers.append(cluster.start(f"torchrun{node}", [
                PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2", f"--node_rank={node}",
                *TORCHRUN_FLAGS,
                "--master_addr=127.0.0.1", f"--master_port={port}", TRAINERS / "steps.py"], env=env))
        for launcher in launchers:
            assert launcher.wait(90 * PATIENCE) == 0, launcher.tail()
        results = [(folder / f"result.{rank}.json").read_text() for rank in range(4)]
        assert all('"steps": 5' in text and '"error": null' in text for text in results)


def test_forked_data_loader(tmp_path):
    """Its workers neither hold the socket or the segments nor disturb the trainer."""
    with Cluster(tmp_path, 2, 1, 1) as cluster:
        for outcome in cluster.run_ranks("data_loader.py", timeout=90):
            assert outcome.result["right"]
            assert outcome.result["workers"], "no worker looked"
            for worker in outcome.result["workers"]:
                assert worker == {"mapped": 0, "sockets": 0, "code": 71}


def test_user_who_is_not_root(tmp_path):
    if os.geteuid() != 0:
        return  # the whole suite is this test
    user = 65534
    folder = pathlib.Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        folder.chmod(0o755)
        # Other users may be unable to read the checkout.
        for source in ("python", "tests"):
            shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(BIN_DIR, folder / "bin")
        shutil.copy(ROOT / "build" / "lib" / "libaddend.so", folder)
        (folder / "run").mkdir()
        os.chown(folder / "run", user, user)
        with Cluster(folder / "run", 2, 2, 1, user=user, bin_dir=folder / "bin") as cluster:
            path = {"PYTHONPATH": f"{folder / 'python'}:{folder}", "ADDEND_LIBRARY": folder / "libaddend.so"}
            original = cluster.rank_environment
            cluster.rank_environment = lambda rank, **more: {
                **original(rank, **more), **{key: str(value) for key, value in path.items()}}
            script = folder / "tests" / "cluster" / "trainers" / "steps.py"
            for outcome in cluster.run_ranks(script, {"steps": 5}):
                assert outcome.result["error"] is None, outcome.result
    finally:
        shutil.rmtree(folder)


def test_no_terminal(tmp_path):
    """No service reads a terminal, or writes escape codes without a terminal."""
    with Cluster(tmp_path, 1, 1, 1) as cluster:
        env = {key: value for key, value in cluster.environment().items() if key != "TERM"}
        for arguments in (["status"], ["jobs"], ["nodes"], ["plan", "--gpu-nodes=4", "--cpu-nodes=2", "--bytes=1GB", "--bandwidth=10Gbps"]):
            result = subprocess.run(["setsid", BIN_DIR / "addendctl", *arguments, f"--scheduler={cluster.scheduler_address}"],
                                    stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=20)
            assert result.returncode == 0, result.stderr
            assert result.stdout and "\x1b" not in result.stdout + result.stderr
        cluster.run_ranks("steps.py", {"steps": 3})
        assert not any("\x1b" in process.text() for process in cluster.processes)


# ---- services ----
def test_services_end_on_sigterm_with_status_0(tmp_path):
    with Cluster(tmp_path, 2, 1, 1) as cluster:
        cluster.run_ranks("steps.py", {"steps": 3})
        for process in [*cluster.agents.values(), *cluster.servers, cluster.scheduler]:
            assert process.stop() == 0, process.tail()


def test_one_job_after_the_other(tmp_path):
    with Cluster(tmp_path, 2, 1, 1) as cluster:
        for _ in range(3):
            for outcome in cluster.run_ranks("steps.py", {"steps": 3}):
                assert outcome.result["error"] is None, outcome.result


def test_two_jobs_share_a_server(tmp_path):
    with Cluster(tmp_path, 2, 1, 1) as first:
        second = Cluster(tmp_path, 2, 1, 0, job="second")
        try:
            second.scheduler, second.scheduler_address = first.scheduler, first.scheduler_address
            for node in range(2):
                second.await_ports(second.start_agent(node, "--colocated-summation=false"))
            runs = [cluster.start_ranks("steps.py", {"steps": 200}) for cluster in (first, second)]
            for ranks in runs:
                for outcome in ranks.join():
                    assert outcome.result["error"] is None, outcome.result
        finally:
            for process in second.processes:
                process.kill()


def test_scheduler_restart_does_not_stop_the_job(tmp_path):
    """With the durable store members go on, and a job that starts later works."""
    with Cluster(tmp_path, 2, 1, 1, store=f"sqlite:{tmp_path}/scheduler.db") as cluster:
        ranks = cluster.start_ranks("steps.py", {"steps": 2000, "gate": "running"})
        ranks.wait_at("running")
        ranks.open("running")
        cluster.scheduler.kill()
        cluster.start_scheduler()
        for outcome in ranks.join():
            assert outcome.result["error"] is None, outcome.result
        for outcome in cluster.run_ranks("steps.py", {"steps": 3}):
            assert outcome.result["error"] is None, outcome.result


def test_status_shows_servers_jobs_and_nodes(tmp_path):
    with Cluster(tmp_path, 2, 2, 2) as cluster:
        ranks = cluster.start_ranks("steps.py", {"steps": 5, "gate": "running"})
        ranks.wait_at("running")
        status = cluster.addendctl("status")
        assert len([s for s in status["servers"] if not s["colocated"]]) == 2
        assert len([s for s in status["servers"] if s["colocated"]]) == 2
        job, = cluster.addendctl("jobs")
        assert job["name"] == "job" and job["tensors"] == 4
        assert {node["node_rank"] for node in cluster.addendctl("nodes")} == {0, 1}
        ranks.open("running")
        ranks.join()


def test_http_endpoints(tmp_path):
    from urllib.request import urlopen
    with Cluster(tmp_path, 1, 1, 1) as cluster:
        for process in (cluster.scheduler, cluster.servers[0], cluster.agents[0]):
            base = f"http://127.0.0.1:{process.ports['http']}"
            metrics = urlopen(f"{base}/metrics", timeout=5).read().decode()
            assert re.search(r"^addend_\w+", metrics, re.M), process.name
            assert urlopen(f"{base}/healthz", timeout=5).status == 200
            eventually(lambda: urlopen(f"{base}/readyz", timeout=5).status == 200, 5, f"{process.name} being ready")


def test_bench_starts_a_whole_cluster(tmp_path):
    """A single `addend-bench local` command; the sums' checksum does not depend on the CPU servers."""
    import json
    checksums = set()
    for cpu_nodes in (0, 2):
        start = time.monotonic()
        result = subprocess.run(
            [BIN_DIR / "addend-bench", "local", "--nodes=3", "--local-size=2", f"--cpu-nodes={cpu_nodes}", "--sizes=4KB,1MB",
             "--iterations=5", "--json"], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)
        assert result.returncode == 0, result.stderr
        rows = json.loads(result.stdout)
        assert [row["bytes"] for row in rows] == [4000, 1000000] and all(row["iterations"] == 5 for row in rows)
        for row in rows:
            assert row["goodput_Bps"] == pytest.approx(row["bytes"] / row["p50_s"], rel=1e-3)
            assert 0 < row["p50_s"] <= row["p99_s"] < time.monotonic() - start and row["cpu_s_per_GB"] > 0
        checksums.add(tuple(row["checksum"] for row in rows))
    assert len(checksums) == 1
