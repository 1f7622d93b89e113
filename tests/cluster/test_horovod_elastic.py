"""hvd.elastic on the real cluster: nodes are lost, others take their place, and the training is that of an undisturbed run."""
import pytest

from tests.cluster.test_horovod_names import PACKAGES
from tests.support.cluster import PATIENCE, ROOT, Cluster
from tests.support.processes import eventually

BATCHES, EPOCHS = 8, 3  # on two ranks
ENVIRONMENT = {"PYTHONPATH": f"{PACKAGES}:{ROOT}"}


def start(cluster, ranks=None, pause_s=0.05):
    return cluster.start_ranks("horovod_elastic.py", {"epochs": EPOCHS, "pause_s": pause_s}, ranks=ranks, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("undisturbed"), nodes=2, cpu_servers=1) as cluster:
        results = [one.result for one in start(cluster, pause_s=0).join(120)]
    assert len(results[0]["losses"]) == BATCHES * EPOCHS and results[0]["resets"] == 0
    assert results[0] == results[1]
    return results[0]


def disturbed(cluster, lost, pause_s):
    """Results of the survivor and of the new rank, where a node is lost in the second epoch and another takes its place."""
    ranks = start(cluster, pause_s=pause_s)
    progress = ranks.folder / f"progress.{lost}"
    eventually(lambda: progress.exists() and int(progress.read_text() or 0) > BATCHES, 120 * PATIENCE, "a batch of the second epoch")
    cluster.agents[lost].kill()
    ranks.processes[lost].kill()
    cluster.await_ports(cluster.start_agent(lost, name="agent-of-a-new-machine"))
    (second,) = start(cluster, ranks=[lost], pause_s=pause_s).join(120)
    ranks.processes.pop(lost)
    (first,) = ranks.join(120)
    assert second.result["resets"] == 0 and first.result["resets"] == 1
    return first.result, second.result


@pytest.mark.parametrize("lost", [1, 0], ids=["the last node", "the first node"])
def test_the_loss_curve_is_that_of_an_undisturbed_run(tmp_path, undisturbed, lost):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        for result in disturbed(cluster, lost, 0.05):
            assert result["losses"] == undisturbed["losses"] and result["weights"] == undisturbed["weights"]


def test_a_node_comes_back_to_others_that_went_on_without_it(tmp_path, undisturbed):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, agent_flags=["--on-node-loss=shrink"]) as cluster:
        first, second = disturbed(cluster, 1, 0.5)
    # Batches between the loss and the return are trained by the other node alone.
    assert first["losses"] == second["losses"] and first["weights"] == second["weights"]
    assert first["losses"][:BATCHES] == undisturbed["losses"][:BATCHES] and len(first["losses"]) == BATCHES * EPOCHS
