"""tests/kubernetes/run itself: without a cluster it says so, and its words are those of the chart."""
import os
import subprocess
import sys

import yaml

from tests.deploy.chart import ROOT
from tests.kubernetes import cluster, monitoring

RUN = ROOT / "tests" / "kubernetes" / "run"


def run(folder, *arguments, kubectl=None):
    """Runs it with a kubectl that prints what a shell command does."""
    path = folder / "bin"
    path.mkdir()
    if kubectl:
        (path / "kubectl").write_text(f"#!/bin/sh\n{kubectl}\n")
        (path / "kubectl").chmod(0o755)
    return subprocess.run([sys.executable, RUN, *arguments], env={**os.environ, "PATH": f"{path}:/usr/bin:/bin", "KUBECONFIG": "/nowhere"} if kubectl else
                          {**os.environ, "PATH": str(path)}, capture_output=True, text=True, timeout=60, check=False)


def test_without_kubectl_it_is_skipped_with_the_reason(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (77, "skipped: no cluster (kubectl is not installed)\n")


def test_without_a_cluster_it_is_skipped_with_kubectls_reason(tmp_path):
    done = run(tmp_path, kubectl='echo "{}"; echo "The connection was refused" >&2; exit 1')
    assert (done.returncode, done.stdout) == (77, "skipped: no cluster (The connection was refused)\n")


def test_a_kubectl_that_cannot_drain_is_refused(tmp_path):
    version = '{"clientVersion": {"minor": "20", "gitVersion": "v1.20.2"}, "serverVersion": {"minor": "36", "gitVersion": "v1.36.2"}}'
    done = run(tmp_path, kubectl=f"echo '{version}'")
    assert done.returncode == 77 and "kubectl is v1.20.2: it must be 1.22 or newer" in done.stdout


def test_an_unknown_case_is_refused_with_those_that_there_are(tmp_path):
    done = run(tmp_path, "nonsense", kubectl="exit 1")
    assert done.returncode == 2 and "there is no case 'nonsense': the cases are first_steps, disturbed_job" in done.stderr


class Images:
    def image(self, name):
        return f"repository/{name}:tag"


def test_the_training_job_is_the_example_with_another_program():
    program, job = cluster.training(Images(), "train", 3, "--rounds=5", machines=["a"])
    example = yaml.safe_load((cluster.EXAMPLES / "job.yaml").read_text())
    assert job["spec"]["podFailurePolicy"] == example["spec"]["podFailurePolicy"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    container, = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "WORLD_SIZE", "value": "3"} in container["env"] and container["command"][-1] == "--rounds=5"
    assert "addend.push_pull" in program["data"]["trainer.py"]


def test_a_pod_monitor_becomes_a_scrape_of_all_pods_that_its_selector_means():
    config = monitoring.scrape_config({
        "kind": "PodMonitor", "metadata": {"name": "agents", "namespace": "addend"}, "spec": {
            "namespaceSelector": {"any": True}, "selector": {"matchLabels": {"a.b/c": "d.e"}, "matchExpressions": [{"key": "x/y", "operator": "Exists"}]},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}]}}, "127.0.0.1:1", "/folder")
    keeps = {tuple(one["source_labels"]): one["regex"] for one in config["relabel_configs"] if one.get("action") == "keep"}
    assert keeps == {("__meta_kubernetes_pod_label_a_b_c",): r"d\.e", ("__meta_kubernetes_pod_labelpresent_x_y",): "true",
                     ("__meta_kubernetes_pod_container_port_name",): "http"}
    assert config["file_sd_configs"] == [{"files": ["/folder/pods.json"]}]
