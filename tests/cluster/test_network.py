"""Links of 200 Mbit/s: communication overlaps with computation, and an urgent tensor overtakes a large tensor."""
import pytest

from tests.support import netns
from tests.support.cluster import Cluster

RATE_BYTES = 200e6 / 8
RAW = ["--wire-encoding=raw"]  # encoded, what these trainers send is gone from the links before anything can overtake it

pytestmark = [pytest.mark.timing]


@pytest.fixture
def network():
    reason = netns.unavailable()
    if reason:
        pytest.skip(reason)
    with netns.Network(3, "200mbit") as network:
        yield network


def test_communication_overlaps_with_computation(tmp_path, network):
    """About 1 s of each takes less than 1.4 s together."""
    with Cluster(tmp_path, 2, 1, 0, network=network, agent_flags=RAW, summation_flags=RAW) as cluster:
        results = cluster.run_ranks("overlap.py", {"bytes": 24_000_000, "buckets": 24, "compute_s": 1.0}, timeout=90)
    for outcome in results:
        assert 0.8 < outcome.result["communication_s"] < 1.25, outcome.result
        assert outcome.result["together_s"] < 1.4, outcome.result


@pytest.mark.parametrize("pieces", [1, 64])
def test_urgent_tensor_overtakes(tmp_path, network, pieces):
    with Cluster(tmp_path, 2, 1, 1, network=network, agent_flags=RAW, summation_flags=RAW) as cluster:
        results = cluster.run_ranks("urgent.py", {"bytes": 64_000_000, "pieces": pieces}, timeout=90)
    for outcome in results:
        r = outcome.result
        assert r["bulk_s"] > 64_000_000 / RATE_BYTES * 0.9, "the link is not limited"
        assert r["bulk_done"] <= 0.1 * pieces, r
        assert r["urgent_s"] - r["pushed_s"] < 0.1 * r["bulk_s"], r
