"""A job calls every service with extremes of every field, without end: services survive, another job's sums stay right, and nothing piles up."""
import json
import random
import subprocess
import sys
import time

import pytest

from tests.support.cluster import Cluster, PATIENCE, ROOT
from tests.support.rounds import finish, goes_on, running

MIB = 1 << 20
CALL_S = 8
HEARD = {"RegisterNode", "WatchNode", "ReportTrainers", "Declare", "Heartbeat", "AckChange", "ReportServerLost", "ReportFailure", "GetStatus"}


def resident(process):
    with open(f"/proc/{process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.fixture
def seed():
    value = random.randrange(1 << 32)
    print(f"seed {value}")
    return value


def secret(folder, name):
    path = folder / name
    path.write_text(f"the secret of {name}, known to nobody else")
    path.chmod(0o600)
    return path


def hostile_calls(cluster, seed):
    targets = [f"--server=127.0.0.1:{server.ports['grpc']}" for server in cluster.servers]
    targets += [f"--agent=127.0.0.1:{agent.ports['grpc']}" for agent in cluster.agents.values()]
    return subprocess.Popen([sys.executable, "-m", "tests.support.hostile_calls", f"--seed={seed}", f"--scheduler={cluster.scheduler_address}", *targets,
                             "--reach", *sorted(HEARD)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


# Alone: beside other clusters the attacker has time for too few calls to reach each method.
@pytest.mark.timing
def test_whatever_a_member_says_costs_itself_alone(tmp_path, seed):
    servers, job = secret(tmp_path, "servers"), secret(tmp_path, "job")
    with Cluster(tmp_path, nodes=2, cpu_servers=2, store=f"sqlite:{tmp_path}/store.db", scheduler_flags=[f"--server-secret-file={servers}", "--lease=30s"],
                 summation_flags=[f"--server-secret-file={servers}"], agent_flags=[f"--job-secret-file={job}"]) as cluster:
        ranks = running(cluster)
        services = [cluster.scheduler, *cluster.servers, *cluster.agents.values()]
        before = [resident(process) for process in services]
        attacker = hostile_calls(cluster, seed)
        try:
            assert attacker.stdout.readline() == "calling\n"
            over = time.monotonic() + CALL_S * PATIENCE
            while time.monotonic() < over:
                goes_on(ranks, rounds=5, timeout=60)
            said = json.loads(attacker.communicate(timeout=120)[0])
        finally:
            attacker.kill()
        assert all(process.returncode is None for process in services)
        taken = {method for method, outcomes in said.items() if "taken" in outcomes}
        assert HEARD <= taken, said  # the attack reached these methods
        assert "job 'hostile" in cluster.scheduler.text() and "(plan version " in cluster.scheduler.text().split("job 'hostile", 1)[1], "of jobs that were ready"
        status = cluster.addendctl("status")
        victim = next(one for one in status["jobs"] if one["name"] == "job")
        assert victim["state"] == "ready", victim
        assert sum(not one["colocated"] for one in status["servers"]) == 2, "both CPU servers are members still"
        grown = {process.name: (resident(process) - was) / MIB for process, was in zip(services, before)}
        assert max(grown.values()) < 150, f"MiB that they have grown: {grown}"
        logs = {process.name: (cluster.folder / f"{process.name}.log").stat().st_size / MIB for process in services}
        assert max(logs.values()) < 5, f"MiB of log: {logs}"
        assert (tmp_path / "store.db").stat().st_size < 20 * MIB
        print(said, grown, logs)
        finish(ranks)
