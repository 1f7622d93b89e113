"""Traffic by process: the shares of Theorem 1, counted by the kernel on every process's sockets."""
import pytest

from tests.support.cluster import Cluster
from tests.support.processes import eventually
from tests.support.sockets import traffic

RAW = ["--wire-encoding=raw"]  # tests/cluster/test_encodings.py has encoded payloads
NODES = 4
BYTES = 64_000_000


def shares(n, k):
    """Theorem 1: the shares of a GPU machine and of a CPU machine, as parts of M."""
    whole = n * n + k * n - 2 * k
    return (n - k) / whole, 2 * (n - 1) / whole


class Counters:
    """Differences of the sockets' counters of every service."""

    def __init__(self, cluster):
        services = [*cluster.agents.values(), *cluster.servers]
        self._data_ports = {service.ports["data"] for service in services}
        self._grpc_ports = {service.ports["grpc"] for service in [cluster.scheduler, *services]}
        self._processes = [cluster.scheduler, *services]
        self._before = self._read()

    def _read(self):
        return {(p.name, kind): traffic(p.pid, ports) for p in self._processes
                for kind, ports in (("data", self._data_ports), ("grpc", self._grpc_ports))}

    def change(self):
        now = self._read()
        return {key: tuple(after - before for after, before in zip(now[key], self._before[key])) for key in now}


@pytest.mark.parametrize("cpu_servers", range(NODES + 1))
def test_every_process_carries_its_share(tmp_path, cpu_servers):
    x, y = shares(NODES, cpu_servers)
    assert abs(NODES * x + cpu_servers * y - 1) < 1e-12
    with Cluster(tmp_path, NODES, 1, cpu_servers, agent_flags=RAW, summation_flags=RAW) as cluster:
        ranks = cluster.start_ranks("volume.py", {"bytes": BYTES, "rounds": 1, "tensors": 4, "warm_up": True, "hold": True})
        ranks.wait_at("warm")
        counters = Counters(cluster)
        ranks.open("warm")
        ranks.wait_at("done")
        change = counters.change()
        ranks.open("done")
        for outcome in ranks.join():
            assert outcome.result["right"]
    for node in range(NODES):
        expected = BYTES * (1 + (NODES - 2) * x)
        for counted in change[f"agent{node}", "data"]:
            assert counted == pytest.approx(expected, rel=0.02), change
    for server in range(cpu_servers):
        for counted in change[f"summation{server}", "data"]:
            assert counted == pytest.approx(NODES * BYTES * y, rel=0.02), change
    for (name, kind), counted in change.items():
        if kind == "grpc":
            assert sum(counted) < 100_000, f"{name} moved {counted} bytes on its gRPC connections"


def test_reported_traffic_is_what_the_kernel_counts(tmp_path):
    with Cluster(tmp_path, 2, 1, 1, agent_flags=RAW, summation_flags=RAW) as cluster:
        ranks = cluster.start_ranks("volume.py", {"bytes": BYTES, "rounds": 1, "tensors": 1, "hold": True})
        ranks.wait_at("done")
        kernel = traffic(cluster.servers[0].pid, {cluster.servers[0].ports["data"]})

        def reported():
            server, = [s for s in cluster.addendctl("status")["servers"] if not s["colocated"]]
            sent, received = server["traffic"]["network_bytes_sent"], server["traffic"]["network_bytes_received"]
            return abs(sent - kernel[0]) < 0.01 * kernel[0] and abs(received - kernel[1]) < 0.01 * kernel[1]
        eventually(reported, 15, "the reported traffic")
        ranks.open("done")
        ranks.join()


def test_a_push_copies_no_more_than_it_must(tmp_path):
    """Ordinary arrays are copied once in and once out; tensors of addend.empty() with a view of the result are not copied."""
    with Cluster(tmp_path, 2, 1, 0, agent_flags=RAW) as cluster:
        ordinary = cluster.run_ranks("volume.py", {"bytes": BYTES, "rounds": 1, "tensors": 1})
        in_place = cluster.run_ranks("volume.py", {"bytes": BYTES, "rounds": 1, "tensors": 1, "in_place": True})
    for outcome in ordinary:
        assert outcome.result["copied_in_bytes"] == outcome.result["copied_out_bytes"] == BYTES
    for outcome in in_place:
        assert outcome.result["copied_in_bytes"] == outcome.result["copied_out_bytes"] == 0


def test_agents_copy_nothing_in_user_space(tmp_path):
    with Cluster(tmp_path, 2, 1, 1, agent_flags=RAW, summation_flags=RAW) as cluster:
        ranks = cluster.start_ranks("volume.py", {"bytes": BYTES, "rounds": 2, "tensors": 1, "hold": True})
        ranks.wait_at("done")
        eventually(lambda: all(n["traffic"]["network_bytes_sent"] > BYTES for n in cluster.addendctl("nodes")),
                   15, "the nodes' heartbeats")
        for node in cluster.addendctl("nodes"):
            assert node["traffic"]["copied_bytes"] < 0.02 * BYTES, node
        ranks.open("done")
        ranks.join()
