"""Jobs on one summation server: the traffic and the demands of a job cost the others no more than their fair share."""
import contextlib
import subprocess
import sys
import time

import pytest

from tests.support import scrape
from tests.support.cluster import Cluster, PATIENCE, ROOT, SANITIZED
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

MIB = 1 << 20


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


SHARED = ["--colocated-summation=false"]
LEASE = ["--lease=30s"]  # the hostile job's only process sends heartbeats for many nodes


@contextlib.contextmanager
def hostile_job(cluster, kind, *flags):
    program = subprocess.Popen([sys.executable, "-m", "tests.support.hostile_job", kind, f"--scheduler={cluster.scheduler_address}", *flags],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def flooding(cluster, kind, *flags):
    @contextlib.contextmanager
    def begun():
        with hostile_job(cluster, kind, *flags) as program:
            assert program.stdout.readline() == "flooding\n"
            yield program
            assert program.poll() is None, "it went on to the end"
    return begun()


def test_a_job_above_its_memory_limit_is_refused_in_one_sentence_and_the_other_goes_on(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHARED, summation_flags=["--memory-limit=64MiB", "--job-memory-limit=8MiB"]) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        with hostile_job(cluster, "refused", f"--bytes={16 * MIB}") as program:
            said = program.communicate(timeout=30 * PATIENCE)[1].strip()
        assert said == ("tensor 'flood' needs 32MiB for its accumulators, in partitions of up to 512KiB, but the summation servers have no room for "
                        "it: server 1 (on " + said.split("(on ")[1].split(")")[0] + ") has 8MiB left for this job; "
                        "raise --job-memory-limit or start another addend-summation")
        goes_on(ranks)
        finish(ranks)


def test_the_refusal_reaches_the_trainers(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHARED, summation_flags=["--job-memory-limit=100KiB"]) as cluster:
        for outcome in cluster.start_ranks("rounds.py").join(60):
            assert "left for this job; raise --job-memory-limit" in outcome.result["text"], outcome.result


@pytest.mark.parametrize("kind", ["rounds", "early", "unread", "amplify", "tiny", "jobs"])
def test_a_flood_keeps_nobody_out(tmp_path, kind):
    """Sixteen links compete with two, in a single thread; the sums stay right."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHARED, summation_flags=["--memory-limit=64MiB", "--job-memory-limit=48MiB"]) as cluster:
        server = cluster.servers[0]
        ranks = running(cluster)
        with flooding(cluster, kind, "--nodes=16", f"--bytes={4 * MIB}"):
            goes_on(ranks, rounds=20, timeout=60)
            assert scrape.value(server, "addend_summation_queued_frames") < 20_000, "what is not read does not pile up"
        finish(ranks)
        assert server.returncode is None


@pytest.mark.skipif(bool(SANITIZED), reason="shadow memory counts too")
def test_asynchronous_updates_whose_answers_nobody_reads_stay_within_the_jobs_memory(tmp_path):
    """Every answer is a copy of the value. A receive buffer of each of the eight links is added."""
    limit, size = 24 * MIB, 8 * MIB
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHARED, summation_flags=["--memory-limit=64MiB", f"--job-memory-limit={limit}"]) as cluster:
        server = cluster.servers[0]
        ranks = running(cluster)
        before = resident_bytes(server.pid)
        with flooding(cluster, "updates", "--nodes=8", f"--bytes={size}", f"--partition-bytes={size}"):
            most, over = 0, time.monotonic() + 4 * PATIENCE
            while time.monotonic() < over:
                goes_on(ranks, timeout=60)
                most = max(most, resident_bytes(server.pid))
        finish(ranks)
        assert most - before < limit + 8 * size + 16 * MIB, f"{(most - before) / MIB:.0f} MiB"


@pytest.mark.skipif(bool(SANITIZED), reason="shadow memory counts too")
def test_what_a_job_of_tiny_partitions_takes_is_counted(tmp_path):
    """Tables cost more than the numbers in them: 8 MiB in partitions of 512 bytes do not fit into 24 MiB."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHARED, summation_flags=["--memory-limit=64MiB", "--job-memory-limit=24MiB"]) as cluster:
        server = cluster.servers[0]
        ranks = running(cluster)
        before = resident_bytes(server.pid)
        with hostile_job(cluster, "refused", f"--bytes={8 * MIB}", "--partition-bytes=512", "--nodes=2") as program:
            said = program.communicate(timeout=60 * PATIENCE)[1].strip().splitlines()[-1]
        assert "have no room for it" in said and "raise --job-memory-limit" in said, said
        with hostile_job(cluster, "refused", f"--bytes={8 * MIB}", "--partition-bytes=4", "--nodes=2", "--job=smaller") as program:
            said = program.communicate(timeout=60 * PATIENCE)[1]
        assert "--partition-bytes=4 of the agent on flood must be at least 512" in said, said
        goes_on(ranks)
        finish(ranks)
        assert resident_bytes(server.pid) - before < 64 * MIB


def test_a_job_that_does_not_read_its_results_is_told_so(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHARED) as cluster:
        server = cluster.servers[0]
        with flooding(cluster, "amplify", f"--bytes={MIB}"):
            eventually(lambda: "asks for more than it reads" in server.text(), 30 * PATIENCE, "the reason in the server's log")


def test_contributions_whose_turn_never_comes_leave_room_for_those_of_others(tmp_path):
    """The flood keeps as much as its limit allows when the other job begins: the other job's early contributions are still kept."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=LEASE, agent_flags=SHARED, summation_flags=["--memory-limit=24MiB"]) as cluster:
        server = cluster.servers[0]
        with flooding(cluster, "early", "--nodes=8", f"--bytes={4 * MIB}"):
            eventually(lambda: scrape.value(server, "addend_summation_memory_bytes", state="used") > 20 * MIB, 30 * PATIENCE, "a full server")
            ranks = running(cluster)
            goes_on(ranks, rounds=50, timeout=60)
            early = {result: scrape.value(server, "addend_summation_early_contributions_total", result=result) for result in ("kept", "dropped")}
            assert early["kept"] > early["dropped"], early
            finish(ranks)
