"""The numbers of `addendctl plan`, compared with independent formulations of the paper's equations."""
import json
import random

import pytest

from tests.support.cluster import ROOT, run_binary


def plan(*arguments):
    result = run_binary("addendctl", "plan", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_speedups_of_the_paper():
    numbers = plan("--gpu-nodes=32", "--cpu-nodes=16", "--bytes=1GB", "--bandwidth=100Gbps")
    assert numbers["n"] == 32 and numbers["k"] == 16
    assert numbers["speedup_vs_allreduce"] == pytest.approx(1.46875, abs=1e-9)
    assert numbers["speedup_vs_ps"] == pytest.approx(1.516129, abs=1e-6)


def test_the_operators_guide_has_the_planners_numbers():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (ROOT / "docs" / "operations.md").read_text().splitlines()
            if line.startswith(("| k |", "| t_opt |", "| against all-reduce |"))]
    for k, t_opt, speedup in list(zip(*rows))[1:]:
        numbers = plan("--gpu-nodes=8", f"--cpu-nodes={k.split()[0]}", "--bytes=1GB", "--bandwidth=25Gbps")
        assert t_opt == f"{1000 * numbers['t_opt_s']:.0f} ms"
        assert float(speedup) == pytest.approx(numbers["speedup_vs_allreduce"], abs=0.0051)
    assert len(rows) == 3


@pytest.mark.parametrize("k", range(9))
def test_equations_for_eight_nodes(k):
    n, size, bandwidth = 8, 1e9, 10e9
    numbers = plan(f"--gpu-nodes={n}", f"--cpu-nodes={k}", "--bytes=1GB", "--bandwidth=10Gbps")
    whole = n * n + k * n - 2 * k
    assert numbers["share_gpu"] == pytest.approx((n - k) / whole, abs=1e-9)
    if k:
        assert numbers["share_cpu"] == pytest.approx(2 * (n - 1) / whole, abs=1e-9)
    t_opt = 2 * n * (n - 1) * (size * 8) / (whole * bandwidth)
    t_allreduce = 2 * (n - 1) * (size * 8) / (n * bandwidth)
    assert numbers["t_opt_s"] == pytest.approx(t_opt, rel=1e-9)
    assert numbers["t_allreduce_s"] == pytest.approx(t_allreduce, rel=1e-9)
    assert numbers["speedup_vs_allreduce"] == pytest.approx(t_allreduce / t_opt, rel=1e-9)
    if k == 0:
        assert numbers["t_ps_s"] is None and numbers["speedup_vs_ps"] is None
    else:
        t_ps = n * (size * 8) / (k * bandwidth)
        assert numbers["t_ps_s"] == pytest.approx(t_ps, rel=1e-9)
        assert numbers["speedup_vs_ps"] == pytest.approx(t_ps / t_opt, rel=1e-9)


@pytest.mark.parametrize("k", range(9))
def test_equations_for_eight_nodes_with_encoded_payloads(k):
    n, contributions, results = 8, 0.5, 0.9
    arguments = (f"--gpu-nodes={n}", f"--cpu-nodes={k}", "--bytes=1GB", "--bandwidth=10Gbps")
    raw = plan(*arguments)
    assert raw["t_opt_encoded_s"] == raw["t_opt_s"] and raw["contribution_ratio"] == raw["result_ratio"] == 1
    numbers = plan(*arguments, f"--contribution-ratio={contributions}", f"--result-ratio={results}")
    whole = n * n + k * (contributions / results * (n - 1) - 1)
    assert numbers["t_opt_encoded_s"] == pytest.approx((contributions + results) * n * (n - 1) / whole * 0.8, rel=1e-9)
    assert numbers["share_gpu"] == pytest.approx((n - k) / whole, abs=1e-9)
    assert (numbers["contribution_ratio"], numbers["result_ratio"]) == (contributions, results)
    same = ("n", "k", "t_opt_s", "t_allreduce_s", "t_ps_s", "speedup_vs_allreduce", "speedup_vs_ps")
    assert all(numbers[key] == raw[key] for key in same)


@pytest.mark.parametrize("flag", ["--contribution-ratio=0", "--contribution-ratio=1.5", "--result-ratio=nan", "--result-ratio=half"])
def test_a_wrong_ratio_is_refused_with_a_sentence(flag):
    result = run_binary("addendctl", "plan", "--gpu-nodes=2", "--bytes=1GB", flag)
    assert result.returncode == 64
    assert result.stderr.count("\n") == 1 and flag.split("=")[0] in result.stderr


def test_more_cpu_machines_than_gpu_machines_are_a_parameter_server():
    numbers = plan("--gpu-nodes=2", "--cpu-nodes=5", "--bytes=1GB", "--bandwidth=8Gbps")
    assert numbers["share_gpu"] == 0 and numbers["share_cpu"] == pytest.approx(0.2)
    assert numbers["t_opt_s"] == pytest.approx(1.0)


def test_one_gpu_machine_has_nothing_to_communicate():
    numbers = plan("--gpu-nodes=1", "--cpu-nodes=0", "--bytes=1GB", "--bandwidth=8Gbps")
    assert all(numbers[key] is None for key in ("t_opt_s", "t_allreduce_s", "t_ps_s", "speedup_vs_allreduce", "speedup_vs_ps"))
    assert numbers["share_gpu"] == 1


def closed_form(gpu, cpu, size):
    """The shares and the least time for unequal bandwidths in bit/s, n > 2."""
    n, bits = len(gpu), size * 8
    time = max(bits / min(gpu), bits * (1 + n / (n - 2)) / (sum(gpu) / (n - 2) + sum(cpu) / n))
    shares = [(time * b / bits - 1) / (n - 2) for b in gpu] + [time * b / (n * bits) for b in cpu]
    return time, [share / sum(shares) for share in shares]


def test_unequal_bandwidths_follow_the_closed_form():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(20):
        n, k = chance.randint(3, 6), chance.randint(0, 6)
        gbps = [chance.choice([10, 20, 25, 40, 50, 100]) for _ in range(n + k)]
        numbers = plan(f"--gpu-nodes={n}", f"--cpu-nodes={k}", "--bytes=1GB",
                       "--bandwidths=" + ",".join(f"{b}Gbps" for b in gbps))
        time, shares = closed_form([b * 1e9 for b in gbps[:n]], [b * 1e9 for b in gbps[n:]], 1e9)
        assert numbers["t_opt_s"] == pytest.approx(time, rel=1e-9), gbps
        assert numbers["shares"] == pytest.approx(shares, abs=1e-9), gbps
