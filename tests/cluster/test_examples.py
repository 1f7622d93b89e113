"""The examples on whole clusters: they learn, and the bits do not depend on the servers."""
import json
import re

import pytest

from tests.support.cluster import PATIENCE, PYTHON, ROOT, Cluster
from tests.support.ports import free_port

EXAMPLES = ROOT / "examples"


def run(cluster, script, *arguments, expect=0):
    """Runs an example on all ranks; their logs."""
    port = free_port()
    ranks = []
    for rank in range(cluster.nodes * cluster.local_size):
        env = cluster.rank_environment(rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        command = [PYTHON, EXAMPLES / script, *arguments]
        ranks.append(cluster.start(f"{script}{port}.rank{rank}", command, env=env))
    for rank in ranks:
        assert rank.wait(120 * PATIENCE) == expect, rank.tail()
    return [rank.text() for rank in ranks]


def numbers(log, what):
    return [float(value) for value in re.findall(rf"{what} ([0-9.]+)", log)]


def checksum(logs):
    """The common checksum of all ranks."""
    (found,) = {re.search(r"^checksum (\w{64})$", log, re.M)[1] for log in logs}
    return found


def accuracy(cluster, *arguments):
    return numbers(run(cluster, "digits_horovod.py", "--epochs=12", *arguments)[0], "accuracy")[-1]


def test_digits_are_learnt_as_well_by_four_ranks_as_by_one(tmp_path):
    """With the same global batches and learning rate, so only rounding differs."""
    with Cluster(tmp_path, 1, 1) as cluster:
        alone = accuracy(cluster, "--batch-size=64", "--base-lr=0.04")
    with Cluster(tmp_path, 2, 2, cpu_servers=1) as cluster:
        together = accuracy(cluster, "--batch-size=16", "--base-lr=0.01")
    assert min(alone, together) > 0.93
    assert abs(alone - together) < 0.02


def test_digits_are_learnt_with_half_the_bytes(tmp_path):
    with Cluster(tmp_path, 2, 1) as cluster:
        assert accuracy(cluster, "--batch-size=32", "--base-lr=0.02", "--fp16-allreduce") > 0.93


@pytest.mark.parametrize("nodes,local_size", [(3, 1), (2, 2)])
def test_digits_are_learnt_asynchronously_and_a_slow_rank_holds_up_no_other_node(tmp_path, nodes, local_size):
    with Cluster(tmp_path, nodes, local_size, cpu_servers=1) as cluster:
        logs = run(cluster, "digits_async.py", "--slow-rank=0", "--slow-by=0.1", "--steps=1800")
    steps = [float(re.search(r"^(\d+) steps", log, re.M)[1]) for log in logs]
    assert len({numbers(log, "accuracy")[-1] for log in logs}) == 1, "all have the same parameters at the end"
    # The order of the steps differs from run to run: 0.93 to 0.99 with a busy neighbour, and a guess is right in 0.1.
    assert numbers(logs[0], "accuracy")[-1] > 0.8
    assert max(steps[:local_size]) < min(steps[local_size:]) / 1.5, steps


def test_diloco_learns_and_all_ranks_agree_with_any_servers(tmp_path):
    checksums = set()
    for cpu_servers in (0, 2):
        with Cluster(tmp_path, 2, 1, cpu_servers) as cluster:
            logs = run(cluster, "diloco.py", "--outer-steps=3", "--inner-steps=5")
        losses = numbers(logs[0], "loss")
        assert len(losses) == 3 and losses[-1] < losses[0] - 0.3
        checksums.add(checksum(logs))
    assert len(checksums) == 1


def test_sharded_replicas_train_as_data_parallelism_does(tmp_path):
    steps = 6
    checksums, losses = set(), []
    for cpu_servers in (0, 2):
        with Cluster(tmp_path, 2, 2, cpu_servers) as cluster:
            logs = run(cluster, "sharded_replicas.py", f"--steps={steps}")
            if cpu_servers == 0:
                progress = cluster.folder / "progress"
                run(cluster, "train_char_transformer.py", f"--steps={steps}", f"--progress-file={progress}")
                plain = [json.loads(line)["loss"] for line in progress.read_text().splitlines()]
        losses = numbers(logs[0], "loss")
        checksums.add(checksum(logs))
    assert len(checksums) == 1
    assert losses == pytest.approx(plain, rel=1e-3) and losses[-1] < losses[0]


def test_hsdp_says_which_pytorch_it_needs_or_learns(tmp_path):
    torch = pytest.importorskip("torch")
    suffices = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)
    with Cluster(tmp_path, 2, 2) as cluster:
        if suffices:
            losses = numbers(run(cluster, "hsdp.py", "--steps=20")[0], "loss")
            assert losses[-1] < losses[0]
        else:
            for log in run(cluster, "hsdp.py", expect=77):
                assert log == (f"hsdp.py: PyTorch {torch.__version__} has no FSDPModule.set_all_reduce_hook; "
                               "it needs PyTorch 2.7 or newer\n")
