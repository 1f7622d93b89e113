"""Compressed gradients on the real data path: fewer bytes, and a model that learns as well."""
import pytest

from bench.compressed_training import AGENT_FLAGS, loss_at_the_end, train
from tests.support.cluster import Cluster

STEPS = 40
WARM_UP = STEPS // 4
SPARSE = {"density": 0.1, "chunk_elements": 512, "momentum": 0.9, "warm_up_steps": WARM_UP}


@pytest.mark.full
def test_a_tenth_of_the_chunks_is_a_tenth_of_the_bytes_and_trains_as_well(tmp_path):
    with Cluster(tmp_path, 2, 1, 1, agent_flags=AGENT_FLAGS) as cluster:
        dense = train(cluster, "dense", STEPS, WARM_UP)
        sparse = train(cluster, "coarse-sparse", STEPS, WARM_UP, arguments=SPARSE)
    assert sparse["bytes_per_step_after_warm_up"] <= 0.15 * dense["bytes_per_step"]
    last = STEPS // 6
    assert loss_at_the_end(sparse, last) == pytest.approx(loss_at_the_end(dense, last), rel=0.02)
    assert loss_at_the_end(dense, last) < 0.8 * dense["losses"][0]
    assert len(sparse["checksums"]) == 1, "the same bits on all ranks"


def test_signs_take_little_and_give_the_same_weights_on_all_ranks(tmp_path):
    with Cluster(tmp_path, 3, 1, 1, agent_flags=AGENT_FLAGS) as cluster:
        dense = train(cluster, "dense", 4, 0)
        signs = train(cluster, "one-bit", 8, 0)
    assert signs["bytes_per_step"] <= 0.25 * dense["bytes_per_step"]
    assert len(signs["checksums"]) == 1 and len(signs["losses"]) == 8
