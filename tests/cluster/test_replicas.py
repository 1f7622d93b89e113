"""Replicas of shards on whole clusters."""
import pytest

from tests.support.cluster import Cluster


@pytest.mark.parametrize("nodes,local_size,cpu_servers", [(2, 2, 1), (3, 1, 0), (1, 2, 0)])
def test_shards_are_joined_with_the_same_shards_of_other_nodes(tmp_path, nodes, local_size, cpu_servers):
    with Cluster(tmp_path, nodes, local_size, cpu_servers) as cluster:
        results = cluster.run_ranks("replicas.py")
    assert [outcome.result for outcome in results] == [{"checks": "all right"}] * (nodes * local_size)
