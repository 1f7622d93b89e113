"""Horovod's API on the real cluster: the same bits despite lost servers, and errors on every rank."""
import pytest

from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually


def only(values):
    """The common value of all ranks."""
    values = list(values)
    assert len(set(values)) == 1, values
    return values[0]


def train(cluster, *runs):
    """The ranks' results, by run; the reference's checksum is rank 0's."""
    ranks = cluster.run_ranks("horovod_train.py", {"runs": runs})
    return list(zip(*(one.result for one in ranks)))


@pytest.mark.parametrize("what", ["dtype", "op", "broadcast", "optimizer"])
def test_disagreeing_ranks_get_a_mismatch_error(tmp_path, what):
    with Cluster(tmp_path, nodes=2) as cluster:
        # The ranks themselves detect the mismatch in allgather, and the job goes on.
        ranks = cluster.run_ranks("horovod_ops.py", {"disagree": ["allgather", what]})
    for result in (one.result for one in ranks):
        for name in ("allgather", what):
            outcome = result[name]
            assert outcome["error"] == "MismatchError" and outcome["code"] == 65, outcome
            assert name in outcome["text"], outcome


def test_training_gives_the_same_bits_for_any_number_of_servers(tmp_path):
    same, compressed = set(), set()
    batches = [6] * 3
    for cpu_servers in (0, 1, 3):
        with Cluster(tmp_path, nodes=3, cpu_servers=cpu_servers) as cluster:
            runs = train(
                cluster, {"batches": batches}, {"batches": batches, "cross_barrier": True},
                *({"batches": batches, "compression": compression} for compression in ("bf16", "top_k")))
        checksums = [only(result["checksum"] for result in run) for run in runs]
        same |= {*checksums[:2], runs[0][0]["reference"]}
        compressed.add(tuple(checksums[2:]))
    assert len(same) == 1 and len(compressed) == 1


def test_a_server_that_is_killed_in_mid_training_changes_no_bit(tmp_path):
    runs = [
        {"batches": [60] * 2, "gates": {3: f"running{number}", 50: f"killed{number}"}, "cross_barrier": cross}
        for number, cross in enumerate((False, True))]
    with Cluster(tmp_path, nodes=2, cpu_servers=2, scheduler_flags=["--lease=3s"]) as cluster:
        ranks = cluster.start_ranks("horovod_train.py", {"runs": runs})
        for number in range(len(runs)):
            ranks.wait_at(f"running{number}")
            ranks.open(f"running{number}")
            steps = ranks.folder / f"steps{number}.0"
            eventually(lambda: int(steps.read_text() or 0) >= 5, 20 * PATIENCE, "step 5")
            cluster.servers[number].kill()
            ranks.open(f"killed{number}")
        results = [one.result for one in ranks.join(60)]
    for run in zip(*results):
        assert only(result["checksum"] for result in run) == run[0]["reference"]


def test_ranks_with_fewer_batches_join(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=1) as cluster:
        runs = train(cluster, {"batches": [2, 7, 4]}, {"batches": [5, 3, 5]},
                     {"batches": [1, 1, 4], "compression": "bf16"})
    assert [only(result["last"] for result in run) for run in runs] == [1, 2, 2]
    for run in runs:
        checksum = only(result["checksum"] for result in run)
        assert (checksum == run[0]["reference"]) == (run is not runs[2])
