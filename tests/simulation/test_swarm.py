"""The swarm of simulated clusters: seeds from --simulate-start on, for as long as --simulate-seconds says; and that a run is a function of its seed."""
import os
import re
import subprocess

import pytest

from tests.support.cluster import ROOT

SIMULATE = ROOT / "build" / "tests" / "addend-simulate"
JOBS = int(os.environ.get("ADDEND_JOBS", os.cpu_count()))
FEWEST = 20  # seeds in a run, on any machine


def start(*arguments):
    return subprocess.Popen([SIMULATE, *arguments], stdout=subprocess.PIPE, text=True)


def test_a_seed_gives_the_same_trace_in_every_process():
    """Byte for byte. The processes differ in the addresses of their objects."""
    for seed in (3, 14, 98):
        first, second = (start(f"--start={seed}", "--trace") for _ in range(2))
        traces = [process.communicate()[0] for process in (first, second)]
        assert len(traces[0]) > 10_000
        assert traces[0] == traces[1], f"seed {seed}"


def swarm(request, share, *arguments):
    """Runs seeds on all processors, for a share of the time. Returns the numbers of seeds and of sums of racks."""
    seconds, first = (request.config.getoption(f"--simulate-{name}") for name in ("seconds", "start"))
    runs = [start(f"--start={first + job}", f"--stride={JOBS}", "--seeds=1000000", f"--seconds={seconds * share}", *arguments) for job in range(JOBS)]
    outputs = [run.communicate()[0] for run in runs]
    for run, output in zip(runs, outputs):
        assert run.returncode == 0, output[-20_000:]
    seeds, events, relayed = (sum(int(re.search(rf"(\d+) {what}", output)[1]) for output in outputs) for what in ("seeds", "events", "sums of racks"))
    print(f"{seeds} seeds, {events} events")
    return seeds, relayed


def test_no_seed_has_a_violation(request):
    seeds, _ = swarm(request, 1)
    assert seeds >= FEWEST


@pytest.mark.parametrize("nodes,rack", [(9, 8), (17, 5), (64, 16), (100, 33)])
def test_no_large_job_in_racks_has_a_violation(request, nodes, rack):
    seeds, relayed = swarm(request, 1 / 40, f"--nodes={nodes}", f"--rack_nodes={rack}")
    assert seeds >= JOBS and relayed > 0
