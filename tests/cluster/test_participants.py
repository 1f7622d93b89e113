"""Tensors of some ranks: their bits, also through the loss of a server; and the mismatch of sets that differ."""
import pytest

from tests.support.cluster import PATIENCE, Cluster
from tests.support.processes import eventually
from tests.support.scrape import total

# Of 4 nodes with 2 ranks each: all, replicas of a mesh, a node alone, parts of nodes, a single rank.
GROUPS = [list(range(8)), [0, 2, 4, 6], [1, 3, 5, 7], [2, 3], [0, 1, 5], [7]]


def check(ranks):
    for outcome in ranks.join(120):
        assert outcome.result["wrong"] == [], outcome.rank


@pytest.mark.parametrize("dtype,cpu_servers", [("float32", 2), ("bfloat16", 0)])
def test_every_set_gets_the_sum_of_its_ranks(tmp_path, dtype, cpu_servers):
    with Cluster(tmp_path, nodes=4, local_size=2, cpu_servers=cpu_servers, agent_flags=["--audit-one-in=3"]) as cluster:
        check(cluster.start_ranks("participants.py", {
            "groups": GROUPS, "dtype": dtype, "elements": 70_001, "rounds": 4, "local_size": 2}))
        everybody = [*cluster.agents.values(), *cluster.servers]
        eventually(lambda: total(everybody, "addend_audits_total", result="match") > 0, 20 * PATIENCE, "audits")
        assert total(everybody, "addend_audit_mismatch_total") == 0


def test_every_set_goes_on_when_a_server_is_lost_and_another_joins(tmp_path):
    with Cluster(tmp_path, nodes=4, local_size=2, cpu_servers=2) as cluster:
        ranks = cluster.start_ranks("participants.py", {
            "groups": GROUPS, "dtype": "float32", "elements": 70_001, "rounds": 30, "local_size": 2, "gate_at": 10})
        ranks.wait_at("middle")
        cluster.servers[0].kill()
        cluster.start_summation()
        ranks.open("middle")
        check(ranks)


def test_sets_that_differ_are_a_mismatch_that_names_both(tmp_path):
    with Cluster(tmp_path, nodes=3, local_size=1, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("participants_differ.py", {"tensors": {
            "0": [("a", [0, 1]), ("b", [0, 1])], "1": [("a", [1, 2]), ("b", [0, 1])], "2": [("a", [1, 2])]}})
        results = [outcome.result["tensors"] for outcome in ranks.join(30)]
    for result in results:
        text = result["a"]
        if text == "ok" and result is not results[0]:
            continue  # ranks 1 and 2 were faster, and have agreed
        assert text.startswith("MismatchError: tensor 'a' is declared as float32 [3] sum of ranks "), text
        assert "sum of ranks 0, 1 by node 0" in text and "sum of ranks 1, 2 by node" in text, text
    assert results[1]["a"].split(":")[0] == results[2]["a"].split(":")[0]
    assert all(result.get("b", "ok") == "ok" for result in results), "the job goes on"


def test_a_set_that_differs_from_one_in_use_is_refused(tmp_path):
    with Cluster(tmp_path, nodes=3, local_size=1, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("participants_differ.py", {"pauses": {"0 a": 2}, "tensors": {
            "0": [("a", [0, 1]), ("b", [0, 1])], "1": [("a", [1, 2]), ("a", [1, 2]), ("b", [0, 1])], "2": [("a", [1, 2]), ("a", [1, 2])]}})
        results = [outcome.result["tensors"] for outcome in ranks.join(30)]
    assert results[0]["a"].startswith("MismatchError: tensor 'a' is declared as float32 [3] sum of ranks 1, 2 by node"), results[0]
    assert [result["a"] for result in results[1:]] == ["ok", "ok"] and results[0]["b"] == results[1]["b"] == "ok"


def test_a_rank_that_leaves_ends_only_what_it_takes_part_in(tmp_path):
    with Cluster(tmp_path, nodes=3, local_size=1, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("participants_differ.py", {"leaver": 2, "pauses": {"1 two": 3}, "tensors": {
            "0": [("all", None), ("gate", None), ("two", [0, 1]), ("two", [0, 1])],
            "1": [("all", None), ("gate", None), ("two", [0, 1]), ("two", [0, 1])], "2": [("all", None)]}})
        ranks.wait_at("left")
        ranks.open("left")
        for outcome in ranks.join(30):
            assert outcome.result["error"] is None, outcome.result
            assert set(outcome.result["tensors"].values()) == {"ok"}, outcome.result
