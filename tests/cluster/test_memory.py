"""The memory of a summation server; and a server with just enough memory: nothing stalls, in any order of the pushes."""
import numpy as np
import pytest

from tests.support.cluster import Cluster, SANITIZED

PARTITION = 1 << 20
TENSORS, ELEMENTS = 10, 4 << 20  # of float32: 160 MiB in all


def resident_bytes(pid, line_of="VmRSS"):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(line_of))


def peak_resident_bytes(pid):
    return resident_bytes(pid, "VmHWM")


@pytest.mark.skipif(bool(SANITIZED), reason="shadow memory counts too")
@pytest.mark.parametrize("nodes,dtype", [(2, "float32"), (4, "float32"), (3, "float64")])
def test_memory_is_what_the_formula_says(tmp_path, nodes, dtype):
    """docs/architecture.md, "Memory": here node 0 is last, so that all others' contributions are kept."""
    elements, width = 8 << 20, np.dtype(dtype).itemsize
    accumulators = 2 * elements * width
    early = (nodes - 1) * elements * width
    raw = "--wire-encoding=raw"  # encoded contributions take less
    with Cluster(tmp_path, nodes, 1, cpu_servers=1, summation_flags=[raw], agent_flags=["--colocated-summation=false", raw]) as cluster:
        process = resident_bytes(cluster.servers[0].pid)
        ranks = cluster.start_ranks("late.py", {"elements": elements, "dtype": dtype, "rounds": 4, "late_s": 3})
        ranks.wait_at("done", 120)
        peak = peak_resident_bytes(cluster.servers[0].pid)
        ranks.open("done")
        for outcome in ranks.join():
            assert outcome.result["right"]
    assert peak == pytest.approx(process + accumulators + early, rel=0.1)


def test_opposite_push_orders_fit_into_the_memory_limit(tmp_path):
    """Memory for two accumulators per partition and a further partition; node 1 pushes in the opposite order of node 0."""
    limit = 2 * TENSORS * ELEMENTS * 4 + PARTITION
    with Cluster(tmp_path, 2, 1, cpu_servers=1, summation_flags=[f"--memory-limit={limit}"],
                 agent_flags=["--colocated-summation=false", f"--partition-bytes={PARTITION}"]) as cluster:
        ranks = cluster.start_ranks("orders.py", {"tensors": TENSORS, "elements": ELEMENTS, "rounds": 3, "pause_s": 0.1,
                                                  "hold": True})
        ranks.wait_at("done", 120)
        peak = peak_resident_bytes(cluster.servers[0].pid)
        ranks.open("done")
        for outcome in ranks.join():
            assert outcome.result["right"]
    if not SANITIZED:  # their shadow memory counts too
        assert peak <= 1.1 * limit, f"{peak / 1e6:.0f} MB were resident, the limit is {limit / 1e6:.0f} MB"


def test_opposite_push_orders_on_many_nodes(tmp_path):
    with Cluster(tmp_path, 4, 2, cpu_servers=2, shards=3, summation_flags=["--memory-limit=2MiB"],
                 agent_flags=["--partition-bytes=16KiB"]) as cluster:
        for outcome in cluster.run_ranks("orders.py", {"tensors": 8, "elements": 50_000, "rounds": 5, "pause_s": 0.005}):
            assert outcome.result["right"]
