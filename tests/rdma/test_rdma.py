"""Whole clusters over RDMA. Machines are told apart by their NIC: those with an even number have the first, the others the second."""
import os
import pathlib
import re
import resource
import subprocess
import time
import urllib.request

import pytest

from tests.rdma.conftest import DEVICES
from tests.support import rounds
from tests.support.cluster import BIN_DIR, Cluster, PATIENCE
from tests.support.ports import free_port
from tests.support.processes import eventually


def nic_of(machine):
    return [f"--rdma-device={DEVICES[machine % 2]}"]


def rdma_cluster(folder, transport="rdma", nodes=3, cpu_servers=2, **more):
    """Nodes are machines 0, 1, 2; CPU servers the next ones. With `rdma` also links behind one NIC go over it."""
    flags = [f"--transport={transport}"]
    return Cluster(folder, nodes=nodes, cpu_servers=cpu_servers, summation_flags=flags, agent_flags=flags,
                   flags_of_node=nic_of, flags_of_server=lambda index: nic_of(nodes + index), **more)


def links(cluster):
    """What each node says about its links: "4 rdma"."""
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


@pytest.mark.parametrize("shards", [1, 2])
def test_sums_are_those_of_the_reference_bit_for_bit(tmp_path, shards):
    with rdma_cluster(tmp_path, shards=shards) as cluster:
        ranks = rounds.running(cluster)
        eventually_links(cluster, r"\d+ rdma")
        assert all(metric(agent, 'addend_agent_links{transport="tcp"}') == 0 for agent in cluster.agents.values())
        rounds.goes_on(ranks)
        rounds.finish(ranks)


def test_a_server_that_is_killed_in_mid_round_is_replaced(tmp_path):
    with rdma_cluster(tmp_path) as cluster:
        ranks = rounds.running(cluster)
        for server in cluster.servers:
            server.kill()
            rounds.goes_on(ranks, timeout=30)
        eventually_links(cluster, r"2 rdma")
        rounds.finish(ranks)


def test_a_server_joins_and_leaves(tmp_path):
    with rdma_cluster(tmp_path, cpu_servers=1) as cluster:
        ranks = rounds.running(cluster)
        joined = cluster.start_summation()
        cluster.await_ports(joined)
        eventually_links(cluster, r"4 rdma")
        rounds.goes_on(ranks)
        assert joined.stop(60 * PATIENCE) == 0
        rounds.goes_on(ranks)
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


# ---- where RDMA ends ----
def test_auto_takes_tcp_where_the_traffic_would_not_leave_the_nic(tmp_path):
    with rdma_cluster(tmp_path, "auto", nodes=3, cpu_servers=0) as cluster:
        ranks = rounds.running(cluster)
        said = eventually_links(cluster, r"1 rdma, 1 tcp \(.*\)|2 rdma")
        assert "behind the same NIC" in said[0] and "behind the same NIC" in said[2] and said[1] == "2 rdma"
        rounds.finish(ranks)


def test_agents_that_want_tcp_get_it_from_the_same_servers(tmp_path):
    with rdma_cluster(tmp_path, "auto", nodes=2, cpu_servers=0) as cluster:
        cluster.agents[1].kill()
        cluster.flags["agent"] = ["--transport=tcp"]
        cluster.await_ports(cluster.start_agent(1, name="agent1b"))
        ranks = rounds.running(cluster)
        said = eventually_links(cluster, r"1 (rdma|tcp .*)")
        assert "--transport=tcp" in said[1]
        rounds.finish(ranks)


def test_a_port_that_goes_down_is_left_for_tcp(tmp_path):
    interface = os.listdir(f"/sys/class/infiniband/{DEVICES[1]}/device/net")[0] if os.path.exists(
        f"/sys/class/infiniband/{DEVICES[1]}/device/net") else "veth1"
    with rdma_cluster(tmp_path, "auto", nodes=2, cpu_servers=1) as cluster:
        ranks = rounds.running(cluster)
        eventually_links(cluster, r".*1 rdma.*")
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)
        try:
            rounds.goes_on(ranks, timeout=30)
            eventually_links(cluster, r"\d tcp .*")
            assert sum(metric(agent, "addend_agent_rdma_fallbacks_total") for agent in cluster.agents.values()) > 0
            rounds.finish(ranks)
        finally:
            subprocess.run(["ip", "link", "set", interface, "up"], check=True)


def summation(*flags, hide=None, user=None, memlock=None):
    """Starts a server that has nothing to do but say what its data path is, where the folder `hide` is empty."""
    command = [BIN_DIR / "addend-summation", "--scheduler=127.0.0.1:1", "--connect-timeout=1s", "--listen=127.0.0.1:0",
               "--data-listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=off", "--advertise=127.0.0.1", *flags]
    if hide:
        command = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hide} && exec "$@"', "sh", *command]
    limits = (lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))) if memlock is not None else None
    return subprocess.run(command, capture_output=True, text=True, timeout=30 * PATIENCE, user=user,
                          extra_groups=[] if user else None, preexec_fn=limits)


@pytest.mark.parametrize("hide,why", [
    ("/dev/infiniband", "cannot be opened"), ("/sys/class/infiniband /sys/class/infiniband_verbs", "no RDMA device")])
def test_without_a_device_that_it_may_use_it_says_so_in_one_line_and_takes_tcp(hide, why):
    result = summation(hide=hide.replace(" ", " && mount -t tmpfs none "))
    assert result.returncode == 76, f"only the scheduler is missing: {result.stderr}"
    lines = [line for line in result.stderr.splitlines() if "RDMA" in line]
    assert len(lines) == 1 and "TCP, without RDMA" in lines[0] and why in lines[0], result.stderr


def test_without_the_providers_of_libibverbs_it_says_so_in_one_line_and_takes_tcp():
    result = summation(hide="/etc/libibverbs.d")
    assert result.returncode == 76, result.stderr
    lines = [line for line in result.stderr.splitlines() if "TCP, without RDMA" in line]
    assert len(lines) == 1 and "ibverbs-providers" in lines[0], result.stderr


def test_rdma_that_was_demanded_and_is_not_allowed_is_an_error():
    result = summation("--transport=rdma", hide="/dev/infiniband")
    assert result.returncode == 77 and "device plugin" in result.stderr, result.stderr


def test_the_limit_of_locked_memory_is_named():
    modes = {device: device.stat().st_mode for device in pathlib.Path("/dev/infiniband").iterdir()}
    try:
        for device in modes:
            device.chmod(0o666)
        result = summation("--transport=rdma", user=65534, memlock=65536)
    finally:
        for device, mode in modes.items():
            device.chmod(mode)
    assert result.returncode == 77 and "ulimit -l" in result.stderr and "IPC_LOCK" in result.stderr, result.stderr


@pytest.mark.parametrize("flag,said", [
    ("--rdma-device=nothing0", "there is no device nothing0 (there is"), ("--rdma-device=%s:7" % (DEVICES or ["x"])[0], "has no port 7"),
    ("--rdma-gid-index=200", "has no entry 200")])
def test_what_cannot_be_had_is_named(flag, said):
    result = summation("--transport=rdma", flag)
    assert result.returncode == 64 and said in result.stderr, result.stderr


def test_nobody_polls_when_nothing_happens(tmp_path):
    with rdma_cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("rounds.py")
        ranks.wait_at("running")  # all of them stand there

        def seconds(process):
            fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        members = [*cluster.agents.values(), *cluster.servers]
        before = [seconds(member) for member in members]
        time.sleep(5)
        for member, used in zip(members, before):
            assert seconds(member) - used < 1, f"{member.name} is busy"
        ranks.open("running")
        rounds.finish(ranks)
