"""A rank that leaves by shutdown(): the other ranks get an error at once if they wait for it, and otherwise no error."""
import pytest

from tests.support.cluster import Cluster

WAIT_S = 30  # a tenth of the stall timeout


def ends(cluster, leaver, **parameters):
    ranks = cluster.start_ranks("leaver.py", {"leaver": leaver, **parameters})
    ranks.wait_at("left")
    ranks.open("left")
    return {outcome.rank: outcome.result for outcome in ranks.join(WAIT_S)}


def heard_of(results, leaver, local_size):
    node, local = divmod(leaver, local_size)
    for rank, result in results.items():
        if rank == leaver:
            assert result["error"] is None, result
            continue
        assert result["error"] == "PeerLostError", (rank, result)
        assert f"rank {leaver} (local rank {local} of node {node}, " in result["text"], result
        assert "has left by shutdown() without a contribution to round" in result["text"], result


@pytest.mark.parametrize("leaver", [0, 3])
@pytest.mark.parametrize("new_tensor", [False, True])
def test_a_rank_that_leaves_while_others_wait_for_it_is_named_on_every_rank(tmp_path, leaver, new_tensor):
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=1) as cluster:
        results = ends(cluster, leaver, new_tensor=new_tensor)
        heard_of(results, leaver, 2)
        assert all(result["sums"] == [4.0] * 3 for result in results.values())


@pytest.mark.parametrize("new_tensor", [False, True])
def test_a_node_whose_only_rank_leaves_is_named_on_every_other_node(tmp_path, new_tensor):
    with Cluster(tmp_path, nodes=3, local_size=1) as cluster:
        heard_of(ends(cluster, 1, new_tensor=new_tensor), 1, 1)
        for agent in cluster.agents.values():
            assert agent.returncode is None
        results = ends(cluster, None)  # the next run is unaffected
        assert all(result["error"] is None and result["sums"] == [3.0] * 4 for result in results.values())


def test_rounds_that_the_rank_has_contributed_to_complete(tmp_path):
    """The rank has pushed, and may not have waited for the result: the others get theirs, and all ranks end with status 0."""
    with Cluster(tmp_path, nodes=2, local_size=1, cpu_servers=1) as cluster:
        results = ends(cluster, 1, pushes_last=True, ends=True)
        assert results[0]["error"] is None and results[0]["sums"] == [2.0] * 4, results
        assert results[1]["error"] is None, results


def test_a_rank_that_leaves_between_two_rounds_is_named_after_the_first(tmp_path):
    with Cluster(tmp_path, nodes=2, local_size=1, cpu_servers=1) as cluster:
        results = ends(cluster, 1, pushes_last=True)
        heard_of(results, 1, 1)
        assert results[0]["sums"] == [2.0] * 4, results


def test_ranks_that_end_one_after_the_other_get_no_error(tmp_path):
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=1) as cluster:
        for _ in range(2):
            results = ends(cluster, 2, ends=True)
            assert all(result["error"] is None for result in results.values()), results
        assert "has failed" not in cluster.scheduler.text()
