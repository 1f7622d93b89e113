"""The scheduler's store is copied while the scheduler is stopped, and the scheduler restarts from the copy, as docs/operations.md describes."""
import shutil
import signal

from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running


def test_a_scheduler_comes_back_from_a_copy_of_its_store(tmp_path):
    store, copies = tmp_path / "store", tmp_path / "copies"
    store.mkdir()
    with Cluster(tmp_path, nodes=2, cpu_servers=1, store=f"sqlite:{store}/scheduler.db") as cluster:
        ranks = running(cluster)
        cluster.scheduler.signal(signal.SIGTERM)
        assert cluster.scheduler.wait(10 * PATIENCE) == 0
        shutil.copytree(store, copies)
        shutil.rmtree(store)
        goes_on(ranks)  # no rank needs the scheduler for this
        shutil.copytree(copies, store)
        cluster.start_scheduler()
        assert "scheduler.db: 3 servers, 2 nodes, " in cluster.scheduler.log.read_text()
        goes_on(ranks)
        cluster.await_ports(cluster.start_summation())
        eventually(lambda: "is in force" in cluster.scheduler.log.read_text(), 20 * PATIENCE, "a share for the server that has joined")
        goes_on(ranks)
        finish(ranks)
