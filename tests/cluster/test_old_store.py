"""A scheduler starts on a store that has lost its last writes (an old copy, a snapshot, a loss of power): the members know higher numbers.

No number is reused for other contents, the bits stay right, and nothing waits for --stall-timeout.
"""
import re
import shutil
import signal
import time

from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running
from tests.support.shim import ShimmedCluster

STALL = 20 * PATIENCE
FLAGS = dict(agent_flags=[f"--stall-timeout={STALL}s"])


class OldStore:
    """A scheduler's SQLite store, a copy of it, and a way to restore that copy."""

    def __init__(self, folder):
        self.folder, self._copy = folder / "store", folder / "copy"
        self.folder.mkdir()

    @property
    def where(self):
        return f"sqlite:{self.folder}/scheduler.db"

    def copy(self, cluster):
        cluster.scheduler.signal(signal.SIGSTOP)  # stopped, so that the copied files fit each other
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.folder, self._copy)
        cluster.scheduler.signal(signal.SIGCONT)

    def lose_what_came_after(self, cluster):
        """Returns the log of the scheduler that ended."""
        return self.restart_on(self._copy, cluster)

    def restart_on(self, folder, cluster):
        """Restarts the scheduler on the copies in `folder` of the store's present files. Returns the log so far."""
        cluster.scheduler.kill()
        log = cluster.scheduler.log.read_text()
        deleted = {file.name for file in folder.iterdir()} - {file.name for file in self.folder.iterdir()}
        shutil.rmtree(self.folder)
        shutil.copytree(folder, self.folder, ignore=shutil.ignore_patterns(*deleted))
        cluster.start_scheduler()
        return log


def versions(log):
    """Plan versions that assigned owners."""
    return [int(number) for number in re.findall(r"\(plan version (\d+)\)", log)]


def share_of(cluster, number):
    shares = {share["server_id"]: share["assigned"] for share in cluster.addendctl("jobs")[0]["shares"]}
    return shares.get(number, 0)


def joins(cluster):
    def numbers():
        return {one["server_id"] for one in cluster.addendctl("status")["servers"]}
    known = numbers()
    server = cluster.start_summation()
    cluster.await_ports(server)
    number, = eventually(lambda: numbers() - known, 10 * PATIENCE, "the new server in the status, which may be 0.1 s old")
    eventually(lambda: share_of(cluster, number) > 0.02, 20 * PATIENCE, "a share for the server that has joined")
    return server, number


def settles(cluster, log, count):
    eventually(lambda: log().count("is in force") >= count, 20 * PATIENCE, "the end of a planned change")


def test_what_members_were_told_is_on_the_disk(tmp_path):
    """The scheduler's machine loses power: each of the store's files has its contents of the last sync."""
    store, synced = OldStore(tmp_path), tmp_path / "synced"
    synced.mkdir()
    with ShimmedCluster(tmp_path, "scheduler", synced=synced, nodes=2, cpu_servers=1, store=store.where, **FLAGS) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        _, number = joins(cluster)
        settles(cluster, cluster.scheduler.log.read_text, 1)
        before = store.restart_on(synced, cluster)
        goes_on(ranks)
        eventually(lambda: share_of(cluster, number) > 0.02, 20 * PATIENCE, "the share of the server that has joined")
        finish(ranks)
        after = cluster.scheduler.log.read_text()[len(before):]
        assert "it is an old copy or has lost its last writes" not in after
        assert "failed" not in after, after


def test_a_job_goes_on_when_the_store_does_not_know_the_last_change(tmp_path):
    store = OldStore(tmp_path)
    with Cluster(tmp_path, nodes=2, cpu_servers=1, store=store.where, **FLAGS) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        store.copy(cluster)
        _, number = joins(cluster)
        settles(cluster, cluster.scheduler.log.read_text, 1)
        goes_on(ranks)
        began = time.monotonic()
        before = store.lose_what_came_after(cluster)
        # A scheduler that did not ask its members would make a change under a plan version that is already used.
        eventually(lambda: versions(cluster.scheduler.log.read_text()[len(before):]), 20 * PATIENCE, "the next plan version")
        goes_on(ranks, timeout=STALL)
        assert time.monotonic() - began < STALL, "nothing waits for the stall timeout"
        after = cluster.scheduler.log.read_text()[len(before):]  # the file contains both logs
        assert versions(after) and min(versions(after)) > max(versions(before)), "a plan version is given once"
        assert "it is an old copy or has lost its last writes" in after
        # The server that the store does not know joins again under its number, and gets its share.
        eventually(lambda: share_of(cluster, number) > 0.02, 20 * PATIENCE, "a share for the server that is unknown to the store")
        goes_on(ranks)
        finish(ranks)


def test_a_job_goes_on_when_the_store_still_has_a_server_that_has_left(tmp_path):
    store = OldStore(tmp_path)
    with Cluster(tmp_path, nodes=2, cpu_servers=2, shards=2, store=store.where, **FLAGS) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        store.copy(cluster)
        cluster.servers[0].signal(signal.SIGTERM)
        assert cluster.servers[0].wait(20 * PATIENCE) == 0
        goes_on(ranks)
        store.lose_what_came_after(cluster)
        goes_on(ranks, timeout=2 * STALL)
        finish(ranks)


def test_a_generation_that_the_store_does_not_know_fails_at_once_and_says_why(tmp_path):
    store = OldStore(tmp_path)
    with Cluster(tmp_path, nodes=2, cpu_servers=1, store=store.where, **FLAGS) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        store.copy(cluster)
        finish(ranks)
        ranks = running(cluster)
        goes_on(ranks)
        began = time.monotonic()
        store.lose_what_came_after(cluster)
        for outcome in ranks.join(2 * STALL, expect=None):
            assert "the store of the scheduler is older than that" in outcome.result["text"], outcome.result
            assert outcome.result["wrong"] == []
        assert time.monotonic() - began < STALL, "nothing waits for the stall timeout"
        ranks = running(cluster)
        goes_on(ranks)
        finish(ranks)
