"""The wall clock of a machine jumps by an hour in either direction: the job goes on, results are right, and new links open."""
import signal
import urllib.request

import pytest

from tests.support.cluster import PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running
from tests.support.shim import ShimmedCluster

HOUR_S = 3600


def secret(folder):
    path = folder / "secret"
    path.write_text("a secret of the test, and nobody else's")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("shimmed", ["agent0", "summation0", "scheduler", "rank0"])
def test_a_clock_that_is_set_on_one_machine_changes_nothing(tmp_path, shimmed, step_s):
    with ShimmedCluster(tmp_path, shimmed, step_s, nodes=2, cpu_servers=1, scheduler_flags=["--lease=3s", "--token-lifetime=10m"],
                        agent_flags=["--stall-timeout=60s", f"--job-secret-file={secret(tmp_path)}"]) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        for total in (2 * step_s, 3 * step_s, 0):
            cluster.shim.step_s = total
            goes_on(ranks)
        cluster.shim.step_s = step_s
        late = cluster.start_summation()
        cluster.await_ports(late)
        eventually(lambda: "is in force" in cluster.scheduler.text(), 60 * PATIENCE, "a share for the server that has joined")
        goes_on(ranks)
        late.kill()  # its partitions move within the lease and a moment, not in an hour
        goes_on(ranks)
        finish(ranks)
        for process in (cluster.scheduler, *cluster.agents.values(), cluster.servers[0]):
            assert process.returncode is None
            assert "has failed" not in process.text() and " stall" not in process.text()


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_round_that_is_open_while_the_clock_is_set_waits_no_shorter_and_no_longer(tmp_path, step_s):
    """A rank stands still while the clock of the other's agent jumps: nothing stalls before the time is over, and then it does."""
    with ShimmedCluster(tmp_path, "agent0", nodes=2, cpu_servers=1, agent_flags=["--stall-timeout=8s"]) as cluster:
        ranks = cluster.start_ranks("rounds.py", {"gate_after": 3})
        ranks.wait_at("running")  # both ranks are at the gate, between two rounds
        (ranks.folder / "running.open").touch()
        goes_on(ranks)
        ranks.processes[1].signal(signal.SIGSTOP)
        eventually(lambda: opens(cluster), 20 * PATIENCE, "a round that waits for the rank")
        cluster.shim.step_s = step_s
        eventually(lambda: opens(cluster) > 3, 20 * PATIENCE, "the round to be open for a few seconds")
        assert "has failed" not in cluster.scheduler.text()
        ranks.processes[1].signal(signal.SIGCONT)
        goes_on(ranks)
        ranks.processes[1].signal(signal.SIGSTOP)
        eventually(lambda: "is open for " in cluster.scheduler.text(), 40 * PATIENCE, "the stall timeout")
        ranks.processes[1].signal(signal.SIGCONT)


def opens(cluster):
    """The seconds for which node 0's oldest round has been open."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.agents[0].ports['http']}/metrics", timeout=10 * PATIENCE) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("addend_agent_oldest_open_round_seconds"):
                return float(line.split()[-1])
    return 0
