"""Trust in results: values that are not finite are traced to their rank, and audits sum partitions a second time."""
import pytest

from tests.support.cluster import PATIENCE, Cluster
from tests.support.processes import eventually
from tests.support.scrape import total

ROUNDS = {"elements": 300_000, "steps": 4, "gate": "done"}


def everybody(cluster):
    return [*cluster.servers, *cluster.agents.values()]


@pytest.mark.parametrize("poison", ["nan", "inf"])
def test_the_rank_that_turned_not_finite_first_is_named_with_tensor_round_and_element(tmp_path, poison):
    with Cluster(tmp_path, nodes=3, local_size=2, cpu_servers=1, agent_flags=["--partition-bytes=4096"]) as cluster:
        ranks = cluster.start_ranks("poisoned.py", {
            "dtype": "float32", "rounds": 5, "rank": 3, "round": 3, "element": 1500, "poison": poison})
        ranks.wait_at("done")
        job = eventually(lambda: (one := cluster.addendctl("jobs")[0])["first_nonfinite"] and one, 20 * PATIENCE, "the origin")
        assert "rank 3 pushed a value that is not finite: element 1500 of tensor 'second' in round 3" in job["first_nonfinite"]
        assert cluster.addendctl("why", cluster.job)["first_nonfinite"] == job["first_nonfinite"]
        events = [event for event in cluster.addendctl("status")["events"] if event["kind"] == "nonfinite"]
        assert any("rank 3 pushed" in event["text"] for event in events)
        # In round 3 only that rank pushed them, in a single partition; its result makes all ranks push them from round 4 on.
        agents = cluster.agents.values()
        assert total(agents, "addend_nonfinite_partitions_total", rank=3) == 1 + 2
        assert total(agents, "addend_nonfinite_partitions_total", rank=0) == 2
        assert total([cluster.agents[0]], "addend_nonfinite_results_total") == 3
        ranks.open("done")
        ranks.join()


def test_a_sum_that_overflows_is_counted_though_no_rank_pushed_anything_but_finite_values(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("poisoned.py", {"dtype": "float16", "rounds": 2, "value": 60000, "round": 0})
        ranks.wait_at("done")
        assert total(cluster.agents.values(), "addend_nonfinite_results_total") == 2 * 2
        assert total(cluster.agents.values(), "addend_nonfinite_partitions_total") == 0
        ranks.open("done")
        ranks.join()


def test_finite_values_are_not_counted(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("poisoned.py", {"dtype": "float64", "rounds": 3, "round": 0})
        ranks.wait_at("done")
        assert total(cluster.agents.values(), "addend_nonfinite_results_total") == 0
        assert cluster.addendctl("jobs")[0]["first_nonfinite"] is None
        ranks.open("done")
        ranks.join()


@pytest.mark.parametrize("cpu_servers", [0, 2])
def test_audits_sum_again_on_another_server_and_find_the_same_bits(tmp_path, cpu_servers):
    """Numerics of every operation and type, with every partition audited."""
    with Cluster(tmp_path, nodes=3, local_size=2, cpu_servers=cpu_servers, agent_flags=["--audit-one-in=1", "--partition-bytes=64KiB"]) as cluster:
        ranks = cluster.start_ranks("paced.py", ROUNDS)
        ranks.wait_at("done")
        partitions = 300_000 * 4 / 65536
        eventually(lambda: total(everybody(cluster), "addend_audits_total", result="match") >= partitions, 20 * PATIENCE, "audits")
        assert total(everybody(cluster), "addend_audit_mismatch_total") == 0
        ranks.open("done")
        ranks.join()


def test_without_audits_nothing_is_sent_twice(tmp_path):
    def network_bytes(one_in):
        with Cluster(tmp_path, nodes=2, cpu_servers=1, agent_flags=[f"--audit-one-in={one_in}", "--partition-bytes=64KiB"]) as cluster:
            ranks = cluster.start_ranks("paced.py", ROUNDS)
            ranks.wait_at("done")
            if one_in:
                eventually(lambda: total(everybody(cluster), "addend_audits_total", result="match") > 0, 20 * PATIENCE, "audits")
            sent = total(cluster.agents.values(), "addend_agent_network_bytes_total", direction="sent")
            audits = total(everybody(cluster), "addend_audits_total")
            ranks.open("done")
            ranks.join()
            return sent, audits
    without, no_audits = network_bytes(0)
    with_all, audits = network_bytes(1)
    assert no_audits == 0 and audits > 0
    assert with_all > 1.2 * without


def test_a_killed_auditor_does_not_delay_rounds(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=2, agent_flags=["--audit-one-in=1", "--partition-bytes=64KiB"]) as cluster:
        ranks = cluster.start_ranks("paced.py", {**ROUNDS, "steps": 30, "compute_s": 0.05})
        eventually(lambda: total(everybody(cluster), "addend_audits_total", result="match") > 0, 20 * PATIENCE, "an audit")
        cluster.servers.pop().kill()
        ranks.wait_at("done")
        assert total(everybody(cluster), "addend_audit_mismatch_total") == 0
        ranks.open("done")
        results = ranks.join()
        assert {result.result["last"] for result in results} == {299_999.0 * (1 + 2 + 3)}
