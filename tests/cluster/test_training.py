"""A real training run with DistributedDataParallel and Addend's hook."""
import json
import signal
import subprocess

import pytest

from tests.support.cluster import Cluster, PATIENCE, PYTHON, ROOT, SANITIZED
from tests.support.ports import free_port

STEPS = 4 if SANITIZED else 20
EXAMPLE = ROOT / "examples" / "train_char_transformer.py"


def exit_status(rank):
    """The exit status of a rank, which has plenty of time on a busy machine; one that hangs says first where its threads stand."""
    try:
        return rank.wait(300 * PATIENCE)
    except subprocess.TimeoutExpired:
        rank.signal(signal.SIGABRT)
        return rank.wait(10)


def train(cluster, reduce, port, steps=STEPS, during=None):
    """Runs the example on all ranks; returns (checksum of the weights, losses). During it, calls during(the file of its progress)."""
    name = f"{reduce}{port}"
    checksum, progress = cluster.folder / f"{name}.checksum", cluster.folder / f"{name}.progress"
    ranks = []
    for rank in range(cluster.nodes * cluster.local_size):
        env = cluster.rank_environment(rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, PYTHONFAULTHANDLER=1)
        ranks.append(cluster.start(f"{name}.rank{rank}", [
            PYTHON, EXAMPLE, f"--steps={steps}", f"--reduce={reduce}", f"--checksum-file={checksum}",
            f"--progress-file={progress}"], env=env))
    if during is not None:
        during(progress)
    for rank in ranks:
        assert exit_status(rank) == 0, rank.tail(80)
    losses = [json.loads(line)["loss"] for line in progress.read_text().splitlines()]
    return checksum.read_text().split()[0], losses


@pytest.mark.parametrize("nodes,local_size,cpu_servers", [pytest.param(4, 1, 2, marks=pytest.mark.full), (2, 2, 0)])
def test_weights_are_those_of_the_reference_bit_for_bit(tmp_path, nodes, local_size, cpu_servers):
    with Cluster(tmp_path, nodes, local_size, cpu_servers) as cluster:
        checksum, losses = train(cluster, "addend", free_port())
        reference_checksum, reference_losses = train(cluster, "reference", free_port())
    assert checksum == reference_checksum
    assert losses == reference_losses and losses[-1] < losses[0]


@pytest.mark.full
def test_loss_curve_is_as_good_as_with_gloo(tmp_path):
    with Cluster(tmp_path, 4, 1, 1) as cluster:
        _, losses = train(cluster, "addend", free_port())
        _, gloo = train(cluster, "gloo", free_port())
    # The same arithmetic in another order: the curves lie within rounding of each other.
    assert len(losses) == len(gloo)
    assert losses == pytest.approx(gloo, rel=0.02)


def test_weights_do_not_depend_on_the_servers(tmp_path):
    checksums = set()
    for cpu_servers, shards in ((0, 1), (2, 3), (5, 1)):
        with Cluster(tmp_path, 4, 1, cpu_servers, shards) as cluster:
            checksums.add(train(cluster, "addend", free_port(), steps=STEPS // 2)[0])
    assert len(checksums) == 1
