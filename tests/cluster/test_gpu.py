"""GPU tensors, with emulated GPUs: the same bits as from host memory, with every strategy and every disturbance.

Only CUDA and NCCL are emulated (tests/support/emulated_cuda): the library that drives them, the agent and the servers are real. tests/gpu runs on a
machine with a GPU.
"""
import json
import subprocess

import pytest

from tests.cluster.test_numerics import check_matrix
from tests.support import emulated_gpu, reference
from tests.support.cluster import ROOT, Cluster, SANITIZED

pytestmark = pytest.mark.skipif(bool(SANITIZED), reason="the trainers' library is that of the release build")
NVLINK = emulated_gpu.BUS_IDS["paper-nvlink"]
# The strategies that keep the order of the ranks, and the GPUs of the ranks that lead to them.
FLAT = {
    "copy": ("paper-nvlink", NVLINK[2:], ["--intranode=copy"]),
    "reduce-broadcast": ("paper-nvlink", NVLINK, []),  # by the paper's rule, if there are ranks on every switch
    "reduce-scatter": ("dgx", emulated_gpu.BUS_IDS["dgx"], []),  # likewise
    "one GPU for two ranks": ("paper-nvlink", [NVLINK[0]] * 4, []),
}


def topology(name):
    """None: this machine's own topology."""
    return f"--topology={ROOT}/tests/data/topology/{name}.xml" if name else "--topology="


def logs_of(cluster):
    return "".join(agent.text() for agent in cluster.agents.values())


@pytest.mark.parametrize("local_size", [2, 3])
@pytest.mark.parametrize("strategy", FLAT)
def test_results_are_those_of_host_memory(tmp_path, strategy, local_size):
    fixture, gpus, flags = FLAT[strategy]
    if strategy == "reduce-broadcast":
        gpus = [NVLINK[0], NVLINK[2], NVLINK[4]]
    check_matrix(tmp_path, 2, local_size, 1, 2, [("random", 1), ("special", 1023), ("random", 250_003)], rounds=2,
                 agent_flags=[topology(fixture), *flags], gpus=gpus)


def test_one_gpu_gives_the_results_of_host_memory(tmp_path):
    check_matrix(tmp_path, 2, 1, 1, 1, [("random", 0), ("random", 3), ("special", 1023), ("random", 250_003)],
                 agent_flags=[topology("one-gpu")], gpus=["0000:01:00.0"])


def run(tmp_path, parameters, gpus, fixture="paper-nvlink", nodes=2, flags=(), during=None, expect=0, **options):
    """The results of the ranks, and the logs of agents and ranks."""
    with Cluster(tmp_path, nodes=nodes, local_size=len(gpus), agent_flags=[topology(fixture), *flags], **options) as cluster:
        ranks = cluster.start_ranks("gpu.py", {"bus_ids": gpus, **parameters})
        if during is not None:
            during(cluster, ranks)
        outcomes = ranks.join(90, expect=expect)
        return [one.result for one in outcomes], logs_of(cluster) + "".join(one.log for one in outcomes)


def expected(nodes, ranks_of_groups, sizes, rounds):
    """The digests: in a node the sum of the groups' sums, each in the order of its ranks."""
    local_size = sum(len(group) for group in ranks_of_groups)
    digests = []
    for number in range(1, rounds + 1):
        one = []
        for index, size in enumerate(sizes):
            def sum_of(node, group):
                return reference.fold("Sum", "float32", [
                    reference.random_values("float32", size, [number, index, node * local_size + rank]) for rank in group])
            of_nodes = [reference.fold("Sum", "float32", [sum_of(node, group) for group in ranks_of_groups])
                        for node in range(nodes)]
            one.append(reference.digest(reference.narrow("float32", reference.fold("Sum", "float32", of_nodes))))
        digests.append(one)
    return digests


SIZES = [1, 1023, 1_048_576 + 7, 3_200_005]


def test_cpu_assisted_aggregation_sums_by_switch(tmp_path):
    """Two ranks on each of two switches without NVLink: the host adds the sums of the switches."""
    gpus = [emulated_gpu.BUS_IDS["paper-pcie"][i] for i in (0, 1, 4, 5)]
    results, log = run(tmp_path, {"what": "rounds", "sizes": SIZES, "rounds": 2}, gpus, "paper-pcie")
    assert "aggregate by cpu-assisted" in log
    assert all(result == expected(2, [[0, 1], [2, 3]], SIZES, 2) for result in results)


def test_a_killed_server_changes_no_bit(tmp_path):
    def kill(cluster, ranks):
        ranks.wait_at("there")
        cluster.servers[0].kill()
        ranks.open("there")

    parameters = {"what": "rounds", "sizes": SIZES, "rounds": 6, "gate_after": 2}
    results, log = run(tmp_path, parameters, NVLINK[2:4], cpu_servers=2, during=kill, scheduler_flags=["--lease=2s"])
    assert "aggregate by reduce-scatter" in log
    assert all(result == expected(2, [[0, 1]], SIZES, 6) for result in results)


def test_nothing_waits_for_the_gpu_and_nothing_is_allocated_in_the_steady_state(tmp_path):
    results, _ = run(tmp_path, {"what": "steady", "elements": 3_000_000}, NVLINK[2:4])
    assert [result["synchronisations"] for result in results] == [0] * 4
    for result in results:
        # A slow moment may need an event more at a time than any moment before.
        assert min(result["allocations"]) == 0 and sum(result["allocations"]) <= 3, results


def test_pushes_can_alternate_between_gpu_and_host_memory(tmp_path):
    results, _ = run(tmp_path, {"what": "both"}, NVLINK[2:4], nodes=1)
    assert results == [{"same": 1, "empty": 0, "of_rank_0": True}] * 2


def test_float32_travels_as_float16_if_the_tensor_is_declared_so(tmp_path):
    sizes = [1023, 1_048_576 + 7]
    results, _ = run(tmp_path, {"what": "rounds", "sizes": sizes, "rounds": 1, "wire": "float16"}, NVLINK[2:4])

    def half(size, index, rank):
        return reference.random_values("float32", size, [1, index, rank]).astype("float16")

    right = []
    for index, size in enumerate(sizes):
        contributions = [[half(size, index, node * 2 + rank) for rank in range(2)] for node in range(2)]
        right.append(reference.digest(reference.push_pull("Sum", "float16", contributions).astype("float32")))
    assert all(result == [right] for result in results)


# ---- failures ----
@pytest.mark.parametrize("flags", [[], ["--intranode=copy"]])
def test_a_gpu_that_fails_ends_the_job_with_its_name(tmp_path, flags):
    results, log = run(tmp_path, {"what": "failing", "fails": 1, "shutdown": False}, NVLINK[2:4], flags=flags, expect=None)
    for rank, result in enumerate(results):
        assert result["error"] == "PeerLostError" and NVLINK[3] in result["text"], result
        if rank != 1:
            assert "rank 1 (local rank 1 of node 0" in result["text"] and "lost its GPU" in result["text"]


def test_a_rank_that_pushes_from_host_memory_what_others_push_from_gpus_is_named(tmp_path):
    results, _ = run(tmp_path, {"what": "mixed", "on_host": 1, "shutdown": False}, NVLINK[2:4], nodes=1, expect=None)
    for result in results:
        assert result["error"] == "MismatchError" and "tensor 't'" in result["text"] and "by rank 1:" in result["text"], result


def test_a_rank_that_never_uses_its_gpu_is_named(tmp_path):
    results, log = run(tmp_path, {"what": "one_stays_away", "on_host": 1, "shutdown": False}, NVLINK[2:4], nodes=1,
                       flags=["--stall-timeout=8s"], expect=None)
    assert "waiting for rank 1 of this node to push its first tensor from a GPU" in log
    for result in results:
        assert result["error"] == "StalledError" and "rank 1 has not pushed anything from a GPU" in result["text"], result


def test_two_ranks_on_one_gpu_cannot_be_forced_to_use_nccl(tmp_path):
    results, _ = run(tmp_path, {"what": "one_stays_away", "on_host": -1, "shutdown": False}, [NVLINK[0]] * 2, nodes=1,
                     flags=["--intranode=reduce-scatter"], expect=None)
    for result in results:
        assert result["error"] == "MismatchError" and "a GPU of its own" in result["text"], result


@pytest.mark.parametrize("machine", ["no-gpu", None])
def test_a_machine_whose_topology_is_unknown_copies(tmp_path, machine):
    results, log = run(tmp_path, {"what": "rounds", "sizes": [1023], "rounds": 1}, ["ffff:3c:00.0", "ffff:3d:00.0"], machine, nodes=1)
    assert "--topology=FILE gives it" in log and "aggregate by copy" in log
    assert all(result == expected(1, [[0], [1]], [1023], 1) for result in results)


def test_the_benchmark_of_copies_runs():
    """Only on a GPU are its figures meaningful."""
    result = subprocess.run([ROOT / "build/tests/addend-bench-gpu-emulated", "--bytes=5MB", "--tensors=3", "--rounds=2", "--json"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["ratio"] > 0 and figures["tensors"] == 3 and figures["bytes"] == 5_000_000


def test_gpudirect_without_rdma_says_so_and_takes_host_memory(tmp_path):
    results, logs = run(tmp_path, {"what": "rounds", "sizes": SIZES, "rounds": 2}, [NVLINK[0]], flags=["--gpudirect"])
    assert results == [expected(2, [[0]], SIZES, 2)] * 2
    assert logs.count("--gpudirect has no effect: there is no RDMA device to read GPUs") == 2, "one line of each agent"
