"""Whole clusters over RDMA. A machine is identified by its NIC: machines with an even number have the first NIC, the others the second."""
import contextlib
import json
import os
import pathlib
import re
import resource
import subprocess
import time
import urllib.request

import pytest

from tests.rdma.conftest import DEVICES
from tests.support import reference, rounds
from tests.support.cluster import BIN_DIR, Cluster, PATIENCE, ROOT
from tests.support.ports import free_port
from tests.support.processes import eventually


def nic_of(machine):
    return [f"--rdma-device={DEVICES[machine % 2]}"]


def rdma_cluster(folder, transport="rdma", nodes=3, cpu_servers=2, **more):
    """Nodes are machines 0, 1, 2; CPU servers are the next machines. With `rdma`, links behind the same NIC use it too."""
    flags = [f"--transport={transport}"]
    return Cluster(folder, nodes=nodes, cpu_servers=cpu_servers, summation_flags=flags, agent_flags=flags,
                   flags_of_node=nic_of, flags_of_server=lambda index: nic_of(nodes + index), **more)


def links(cluster):
    """Each node's report about its links: "4 rdma"."""
    return [node["links"] for node in cluster.addendctl("nodes")]


def eventually_links(cluster, pattern):
    def all_match():
        said = links(cluster)
        return said if all(re.fullmatch(pattern, text) for text in said) else None
    return eventually(all_match, 10 * PATIENCE, f"links like '{pattern}' on every node")


def metric(process, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{process.ports['http']}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])


def test_the_bits_are_those_of_the_reference_despite_lost_servers(tmp_path):
    """Three nodes and two CPU servers, and a server that joins; all three servers end: by SIGTERM, or killed in the middle of a round."""
    with rdma_cluster(tmp_path, shards=2) as cluster:
        ranks = rounds.running(cluster)
        eventually_links(cluster, r"\d+ rdma")
        assert all(metric(agent, 'addend_agent_links{transport="tcp"}') == 0 for agent in cluster.agents.values())
        joined = cluster.start_summation()
        cluster.await_ports(joined)
        rounds.goes_on(ranks)
        cluster.servers[0].kill()
        rounds.goes_on(ranks, timeout=30)
        assert joined.stop(60 * PATIENCE) == 0
        cluster.servers[1].kill()
        rounds.goes_on(ranks, timeout=30)
        eventually_links(cluster, r"\d+ rdma")
        rounds.finish(ranks)


def test_a_lost_server_loses_no_asynchronous_update(tmp_path):
    with rdma_cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = rounds.running(cluster, "async_counts.py")
        eventually_links(cluster, r"2 rdma")
        cluster.servers[0].kill()
        rounds.goes_on(ranks, timeout=30)
        rounds.finish(ranks)


def test_training_with_ddp_has_the_weights_of_the_reference(tmp_path):
    with rdma_cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("train_twice.py", {"steps": 3}, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()})
        ranks.wait_at("trained with addend", timeout=100)
        eventually_links(cluster, r"2 rdma")
        ranks.open("trained with addend")
        ranks.open("trained with reference")
        checksums = ranks.join(100)[0].result
    assert checksums["addend"] == checksums["reference"]


# ---- the limits of RDMA ----
def interface_of(device):
    """The network interface under a RoCE device."""
    return re.search(rf"link {device}/1 .* netdev (\S+)", subprocess.check_output(["rdma", "link", "show"], text=True))[1]


def seconds_of(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_auto_uses_rdma_between_nics_sleeps_when_idle_and_leaves_a_port_that_goes_down(tmp_path):
    with rdma_cluster(tmp_path, "auto", nodes=3, cpu_servers=0) as cluster:
        ranks = cluster.start_ranks("rounds.py")
        ranks.wait_at("running")  # all ranks wait there
        said = eventually_links(cluster, r"1 rdma, 1 tcp \(.*\)|2 rdma")
        assert "behind the same NIC" in said[0] and "behind the same NIC" in said[2] and said[1] == "2 rdma"
        before = {node: seconds_of(agent) for node, agent in cluster.agents.items()}
        time.sleep(5)
        for node, agent in cluster.agents.items():
            assert seconds_of(agent) - before[node] < 1, f"{agent.name} is busy, and nothing happens"
        ranks.open("running")
        rounds.goes_on(ranks)
        interface = interface_of(DEVICES[1])
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)
        try:
            rounds.goes_on(ranks, timeout=30)
            eventually_links(cluster, r"2 tcp .*")
            assert all(metric(agent, "addend_agent_rdma_fallbacks_total") > 0 for agent in cluster.agents.values())
            rounds.finish(ranks)
        finally:
            subprocess.run(["ip", "link", "set", interface, "up"], check=True)


def summation(*flags, hide=(), user=None, memlock=None):
    """Starts a server that only logs its data path, with the folders `hide` empty."""
    command = [BIN_DIR / "addend-summation", "--insecure", "--scheduler=127.0.0.1:1", "--connect-timeout=1s", "--listen=127.0.0.1:0",
               "--data-listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=off", "--advertise=127.0.0.1", *flags]
    if hide:
        mounts = " && ".join(f"mount -t tmpfs none {folder}" for folder in hide)
        command = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command]
    limits = (lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))) if memlock is not None else None
    return subprocess.run(command, capture_output=True, text=True, timeout=30 * PATIENCE, user=user,
                          extra_groups=[] if user else None, preexec_fn=limits)


PROVIDERS = "/etc/libibverbs.d", *map(str, pathlib.Path("/usr/lib").glob("*/libibverbs"))


@pytest.mark.parametrize("hide,why", [(["/dev/infiniband"], "device plugin"), (PROVIDERS, "ibverbs-providers")])
def test_without_a_usable_device_one_line_says_so_and_tcp_is_used(hide, why):
    result = summation(hide=hide)
    assert result.returncode == 76, f"only the scheduler is missing: {result.stderr}"
    lines = [line for line in result.stderr.splitlines() if "TCP, without RDMA" in line]
    assert len(lines) == 1 and why in lines[0], result.stderr


def test_rdma_that_was_demanded_and_is_not_allowed_is_an_error():
    result = summation("--transport=rdma", hide=["/dev/infiniband"])
    assert result.returncode == 77 and "device plugin" in result.stderr, result.stderr


@contextlib.contextmanager
def devices_for_everybody():
    modes = {device: device.stat().st_mode for device in pathlib.Path("/dev/infiniband").iterdir()}
    try:
        for device in modes:
            device.chmod(0o666)
        yield
    finally:
        for device, mode in modes.items():
            device.chmod(mode)


def test_the_limit_of_locked_memory_is_named():
    with devices_for_everybody():
        result = summation("--transport=rdma", user=65534, memlock=65536)
    assert result.returncode == 77 and "ulimit -l" in result.stderr and "IPC_LOCK" in result.stderr, result.stderr


@pytest.mark.parametrize("flag,said", [
    ("--rdma-device=nothing0", "there is no device nothing0 (there is"), ("--rdma-device=%s:7" % (DEVICES or ["x"])[0], "has no port 7"),
    ("--rdma-gid-index=200", "has no entry 200")])
def test_missing_devices_ports_and_gids_are_named(flag, said):
    result = summation("--transport=rdma", flag)
    assert result.returncode == 64 and said in result.stderr, result.stderr


def doctor(user=None, memlock=None):
    """The results of addendctl doctor about RDMA and locked memory, without a scheduler."""
    limits = (lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))) if memlock is not None else None
    result = subprocess.run([BIN_DIR / "addendctl", "doctor", "--scheduler=127.0.0.1:1", "--json"], capture_output=True, text=True,
                            timeout=30 * PATIENCE, user=user, extra_groups=[] if user else None, preexec_fn=limits)
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    return checks["rdma"], checks["locked memory"]


def test_doctor_registers_memory_with_every_nic():
    rdma, _ = doctor()
    assert rdma["verdict"] == "ok" and "64 MB registered" in rdma["found"], rdma
    assert all(f"{device}:1" in rdma["found"] for device in DEVICES)


def test_doctor_finds_a_limit_of_locked_memory_that_is_too_low_for_rdma():
    with devices_for_everybody():
        rdma, locked = doctor(user=65534, memlock=65536)
    assert rdma["verdict"] == "problem" and locked["verdict"] == "problem", (rdma, locked)
    assert "ulimit -l" in rdma["advice"] + rdma["found"] and "IPC_LOCK" in locked["advice"]


# ---- GPUs whose memory NICs read: both are emulated, and so is the dma-buf; the rest is real ----
GPU = "0000:03:00.0"  # shares a PCIe switch with the first two NICs of the recorded machine
DMABUF = ROOT / "build" / "tests" / "libemulated_dmabuf.so"


def gpudirect_cluster(folder, monkeypatch):
    """Two nodes with a GPU each and a CPU server, machines 0, 1 and 2; half of all partitions are audited."""
    recorded = (ROOT / "tests" / "data" / "topology" / "dgx.xml").read_text()
    topology = folder / "topology.xml"
    topology.write_text(recorded.replace("mlx5_0", DEVICES[0]).replace("mlx5_1", DEVICES[1]))
    monkeypatch.setattr(Cluster, "start_agent", preloaded(Cluster.start_agent))
    return Cluster(folder, nodes=2, cpu_servers=1, flags_of_node=nic_of, flags_of_server=lambda index: nic_of(2 + index),
                   summation_flags=["--transport=rdma"], agent_flags=["--transport=rdma", "--gpudirect", f"--topology={topology}", "--audit-one-in=2"])


def preloaded(start_agent):
    def start(cluster, *arguments, **options):
        os.environ["LD_PRELOAD"] = str(DMABUF)
        try:
            return start_agent(cluster, *arguments, **options)
        finally:
            del os.environ["LD_PRELOAD"]
    return start


SIZES = [1000, 400_000]  # float32: the first is too small for GPUDirect


def expected(rounds):
    def one(number, index, size):
        return reference.digest(reference.narrow("float32", reference.fold("Sum", "float32", [
            reference.random_values("float32", size, [number, index, rank]) for rank in range(2)])))
    return [[one(number, index, size) for index, size in enumerate(SIZES)] for number in range(1, rounds + 1)]


def test_a_nic_reads_contributions_from_the_gpu_whatever_happens_to_the_server(tmp_path, monkeypatch):
    """Every node's colocated server and the auditors need host memory: those parts are fetched. Then further parts are fetched: those of a killed
    server, and of the partition with a NaN. A round comes from host memory, where the fetched parts are."""
    with gpudirect_cluster(tmp_path, monkeypatch) as cluster:
        rounds = 6
        ranks = cluster.start_ranks("gpu.py", {"what": "rounds", "bus_ids": [GPU], "sizes": SIZES, "rounds": rounds, "gate_after": 3, "host_round": 4,
                                               "poison": [rounds, 1, 1]})
        ranks.wait_at("there", timeout=60)
        assert all("a NIC reads contributions from the GPU of local rank 0 (--gpudirect)" in agent.text() for agent in cluster.agents.values())
        read = [metric(agent, 'addend_agent_gpudirect_bytes_total{job_name="job"}') for agent in cluster.agents.values()]
        of_a_round = 4 * SIZES[1]  # the node's own server sums a quarter of it
        assert all(of_a_round / 2 < bytes_read < 3 * of_a_round for bytes_read in read), (read, of_a_round)
        cluster.servers[0].kill()
        ranks.open("there")
        for one in ranks.join(100):
            assert one.result[:rounds - 1] == expected(rounds - 1)
        assert all("new owners" in agent.text() for agent in cluster.agents.values())
        assert "rank 1 pushed a value that is not finite: element 7 of tensor 't1' in round 6" in cluster.agents[1].text()
        assert "not finite" not in cluster.agents[0].text()
        assert not re.search("audit.*differ", "".join(process.text() for process in cluster.agents.values()))
