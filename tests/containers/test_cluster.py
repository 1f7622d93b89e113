"""A training job on a cluster of containers: during the training a summation server is killed, and another is stopped."""
import os
import pathlib
import subprocess
import time
import types

import pytest

from tests.containers.pods import MEMORY_MIB, TRAINER_UID, Pods
from tests.support.cluster import BIN_DIR, PYTHON, ROOT
from tests.support.processes import eventually

NODES = 2
STEPS = 160
KILL_AT, STOP_AT = 15, 30
GRACE_S = 30
HTTP_PORTS = {"scheduler": 7080, "summation": 7180}


def steps_done(output):
    progress = output / "progress"
    lines = progress.read_text().splitlines(keepends=True) if progress.exists() else []
    return sum(line.endswith("\n") for line in lines)


def checksum_without_containers(folder):
    """The checksum of the same training, by processes of this machine."""
    training = [ROOT / "examples" / "train_char_transformer.py", f"--steps={STEPS}", f"--checksum-file={folder}/checksum"]
    subprocess.run([PYTHON, "-m", "addend", "run", f"--nodes={NODES}", "--", *training], check=True, timeout=300, stdin=subprocess.DEVNULL,
                   env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "ADDEND_BIN_DIR": str(BIN_DIR), "OMP_NUM_THREADS": "1"})
    return (folder / "checksum").read_text().strip()


def namespaces(pid):
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("net", "ipc", "pid", "mnt")}


def process_status(pid):
    return dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def mounts(pid):
    """{mount point: (options, file system)} of a process."""
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        words, system = (part.split() for part in line.split(" - "))
        found[words[4]] = (words[5].split(","), (words[2], words[3], system[0]))
    return found


@pytest.fixture(scope="module")
def training(podman, images, tmp_path_factory):
    """Runs the scenario of the whole module once; the tests check its records."""
    output = tmp_path_factory.mktemp("output")
    output.chmod(0o777)
    pods = Pods(podman, images, NODES)
    seen = types.SimpleNamespace(pods=pods, ends={})
    with pods.removed_at_the_end():
        pods.start(servers=2)
        pods.start_trainers(STEPS, output)
        wait_for_step(pods, output, 5)
        # On a busy machine the training would end before everything is looked at.
        podman("kill", "--signal=STOP", "trainer-0")
        look(pods, seen)
        podman("kill", "--signal=CONT", "trainer-0")

        wait_for_step(pods, output, KILL_AT)
        podman("kill", "--signal=KILL", "summation-0")
        seen.ends["summation-0"] = pods.end_status("summation-0", 30)
        seen.killed_at = steps_done(output)

        wait_for_step(pods, output, STOP_AT)
        start = time.monotonic()
        seen.ends["summation-1"] = pods.stop("summation-1", GRACE_S)
        seen.drained_s, seen.stopped_at = time.monotonic() - start, steps_done(output)

        for node in range(NODES):
            seen.ends[f"trainer-{node}"] = pods.end_status(f"trainer-{node}", 300)
        for name in [*(f"agent-{node}" for node in range(NODES)), "scheduler"]:
            seen.ends[name] = pods.stop(name, GRACE_S)
        seen.steps = steps_done(output)
        seen.checksum = (output / "checksum").read_text().strip()
    return seen


def wait_for_step(pods, output, step):
    def there():
        ended = [f"trainer-{node}" for node in range(NODES) if not pods.podman.inspect(f"trainer-{node}")["State"]["Running"]]
        assert not ended, "\n".join(pods.log(name) for name in ended)
        return steps_done(output) >= step
    eventually(there, 180, f"step {step}", interval=0.2)


def both_have_summed(status):
    """The status, once both servers' heartbeats report sums."""
    servers = [server for server in status["servers"] if not server["colocated"]]
    return len(servers) == 2 and all(server["traffic"]["payload_bytes_summed"] > 0 for server in servers) and status


def look(pods, seen):
    """Records the state while all services run, in the middle of the training."""
    seen.status = eventually(lambda: both_have_summed(pods.status()), 10, "both CPU servers' heartbeats to say that they have summed")
    seen.probes = {(name, service): pods.serves(name, service) for name in pods.services() for service in ("", "readiness")}
    seen.http = {(name, path): pods.http_status(f"http://{name}:{HTTP_PORTS['scheduler' if name == 'scheduler' else 'summation']}{path}")
                 for name in ("scheduler", "summation-0", "summation-1") for path in ("/healthz", "/readyz", "/metrics")}
    seen.processes = {name: types.SimpleNamespace(namespaces=namespaces(pid), status=process_status(pid), mounts=mounts(pid))
                      for name in [*pods.services(), *(f"trainer-{node}" for node in range(NODES))] for pid in [pods.pid(name)]}


def test_the_weights_are_those_of_a_training_without_containers(training, tmp_path):
    assert training.steps == STEPS
    assert training.checksum == checksum_without_containers(tmp_path)


def test_both_summation_containers_had_summed_before_one_was_killed(training):
    assert both_have_summed(training.status)


def test_training_goes_on_when_a_summation_container_is_killed(training):
    assert training.ends["summation-0"] == 137
    assert KILL_AT <= training.killed_at < training.stopped_at


def test_a_summation_container_drains_at_sigterm_and_ends_with_0(training):
    assert training.ends["summation-1"] == 0
    assert training.drained_s < GRACE_S
    assert training.stopped_at < STEPS, "the training was to go on meanwhile: let it take more steps"


def test_trainers_agents_and_the_scheduler_end_with_0(training):
    others = [f"{kind}-{node}" for kind in ("trainer", "agent") for node in range(NODES)] + ["scheduler"]
    assert {name: training.ends[name] for name in others} == dict.fromkeys(others, 0)


def test_a_summation_server_takes_three_quarters_of_its_containers_memory(training):
    limits = [server["memory_limit_bytes"] for server in training.status["servers"] if not server["colocated"]]
    assert limits == [MEMORY_MIB * 2**20 * 3 // 4] * 2


def test_every_service_answers_the_probes_of_kubernetes(training):
    assert len(training.probes) == 2 * (1 + 2 + NODES)
    assert all(training.probes.values()), training.probes


def test_every_server_answers_over_http_by_its_name_in_the_network(training):
    assert set(training.http.values()) == {200}, training.http


@pytest.mark.parametrize("node", range(NODES))
def test_the_containers_of_a_pod_share_the_network_and_the_volume_alone(training, node):
    agent, trainer = training.processes[f"agent-{node}"], training.processes[f"trainer-{node}"]
    assert {kind for kind in agent.namespaces if agent.namespaces[kind] == trainer.namespaces[kind]} == {"net"}
    # Except the mounts that every container of the machine has from its kernel.
    common = {where for where, (_, source) in agent.mounts.items() if source[2] not in ("proc", "sysfs", "cgroup", "cgroup2")
              and source in {other for _, other in trainer.mounts.values()}}
    assert common == {"/run/addend", "/etc/hosts", "/etc/resolv.conf"}  # of these two, the network


def test_no_container_has_root_or_capabilities_or_a_writable_root(training):
    for name, process in training.processes.items():
        assert process.status["Uid"].split() == [str(TRAINER_UID if name.startswith("trainer") else 65532)] * 4, name
        assert process.status["CapEff"].strip() == process.status["CapBnd"].strip() == "0" * 16, name
        assert process.status["NoNewPrivs"].strip() == "1", name
        assert process.status["Seccomp"].strip() == "2", f"{name} is not under the engine's own filter of system calls"
        assert "ro" in process.mounts["/"][0], name
