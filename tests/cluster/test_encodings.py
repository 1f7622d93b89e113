"""Fewer bytes on the wire: exact encodings change no bit, and lossy types round twice, whatever happens."""
import signal

import numpy as np
import pytest

from tests.cluster.test_numerics import check_matrix
from tests.support import reference
from tests.support.cluster import Cluster, PATIENCE, run_binary
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

LEASE = ["--lease=3s"]
RAW = ["--wire-encoding=raw"]
MIXED = [("mixed", 64), ("mixed", 1023), ("mixed", 40_001)]
LOSSY = ("bf16", "fp16", "int8")


def every_other(index):
    return RAW if index % 2 else ()


# ---- exact ----


@pytest.mark.parametrize("nodes,local_size,cpu_servers,shards", [(2, 1, 1, 1), (3, 1, 2, 3), (4, 2, 0, 1), (2, 1, 2, 1)])
@pytest.mark.parametrize("senders", ["encode", "are raw", "are mixed"])
def test_an_encoding_changes_no_bit(tmp_path, nodes, local_size, cpu_servers, shards, senders):
    flags = {"encode": {}, "are raw": {"agent_flags": RAW, "summation_flags": RAW}, "are mixed": {"flags_of_node": every_other, "flags_of_server": every_other}}
    check_matrix(tmp_path, nodes, local_size, cpu_servers, shards, MIXED, rounds=2, **flags[senders])


@pytest.mark.parametrize("options", [["--encrypt-data"], ["--audit-one-in=1"], ["--partition-bytes=4096"], ["--colocated-summation=false"]],
                         ids=["encrypted", "audited", "in small partitions", "on CPU servers"])
def test_encodings_travel_as_other_payloads_do(tmp_path, options):
    check_matrix(tmp_path, 3, 1, 2, 2, MIXED, rounds=3, agent_flags=options)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_encoded_rounds_survive_the_loss_of_servers(tmp_path, number):
    with Cluster(tmp_path, nodes=3, cpu_servers=2, shards=2, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster, kind="mixed")
        for server in list(cluster.servers):
            server.signal(number)
            goes_on(ranks)
        cluster.start_summation()
        goes_on(ranks)
        finish(ranks)


def ratios(cluster):
    job = cluster.addendctl("status")["jobs"][0]
    return job["contribution_ratio"], job["result_ratio"]


def test_the_plan_follows_the_measured_ratios(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=1, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster, kind="mixed")
        eventually(lambda: ratios(cluster)[0] < 0.9, 60 * PATIENCE, "a plan for encoded payloads")
        contributions, results = ratios(cluster)
        assert 0.2 < contributions < 0.9 and 0.2 < results < 0.95
        goes_on(ranks)
        finish(ranks)


def test_raw_payloads_leave_the_plan_alone(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, agent_flags=RAW, summation_flags=RAW) as cluster:
        ranks = running(cluster, kind="mixed")
        goes_on(ranks, rounds=50)
        assert ratios(cluster) == (1, 1)
        finish(ranks)


# ---- lossy ----


@pytest.mark.parametrize("nodes,local_size,cpu_servers,shards", [(2, 1, 1, 1), (3, 2, 2, 2), (4, 1, 0, 1)])
@pytest.mark.parametrize("wire", LOSSY)
def test_a_lossy_type_rounds_contributions_and_results(tmp_path, nodes, local_size, cpu_servers, shards, wire):
    with Cluster(tmp_path, nodes, local_size, cpu_servers, shards,
                 agent_flags=[f"--wire-dtype={wire}", "--audit-one-in=1"]) as cluster:
        ranks = running(cluster, wire=wire)
        goes_on(ranks)
        finish(ranks)
        audits = sum(job["audits"]["mismatched"] for job in cluster.addendctl("status")["jobs"] if "audits" in job)
        assert audits == 0


def test_a_lossy_type_keeps_its_bits_when_servers_are_lost(tmp_path):
    with Cluster(tmp_path, nodes=3, cpu_servers=2, scheduler_flags=LEASE, agent_flags=["--wire-dtype=int8"]) as cluster:
        ranks = running(cluster, wire="int8")
        for server in list(cluster.servers):
            server.kill()
            goes_on(ranks)
        finish(ranks)


def digests_of(tmp_path, name, **options):
    """The results of a tensor with stochastic rounding, and of one that names its own type."""
    folder = tmp_path / name
    folder.mkdir()
    with Cluster(folder, nodes=3, **options) as cluster:
        outcomes = cluster.start_ranks("wire_types.py", {}).join(60)
    results = [{key: outcome.result[key] for key in ("stochastic", "nearest", "named", "exact")} for outcome in outcomes]
    assert all(result == results[0] for result in results), "the ranks differ"
    return results[0]


def test_stochastic_rounding_depends_on_nothing_but_the_tensor(tmp_path):
    flags = ["--wire-dtype=int8", "--wire-rounding=stochastic"]
    first = digests_of(tmp_path, "colocated", agent_flags=flags)
    assert digests_of(tmp_path, "others", agent_flags=[*flags, "--partition-bytes=8KiB", *RAW], cpu_servers=2, shards=2) == first
    assert len(set(first["stochastic"])) == len(first["stochastic"]), "every round has bits of its own"
    assert first["named"] == first["exact"], "a tensor that names its type is not rounded to the job's"
    assert first["stochastic"][0] != first["nearest"]


def test_nodes_that_name_different_types_are_told(tmp_path):
    with Cluster(tmp_path, nodes=2, flags_of_node=lambda node: ["--wire-dtype=int8"] if node else []) as cluster:
        for outcome in cluster.start_ranks("wire_types.py", {}).join(60, expect=None):
            assert outcome.result["error"] == "MismatchError", outcome.result
            assert "wire int8" in outcome.result["text"] and "node 0" in outcome.result["text"] and "node 1" in outcome.result["text"]


@pytest.mark.parametrize("flag,sentence", [
    ("--wire-dtype=int4", "--wire-dtype=int4 is unknown: use same or bf16 or fp16 or int8"),
    ("--wire-rounding=up", "--wire-rounding=up is unknown: use nearest or stochastic"),
    ("--wire-encoding=zip", "--wire-encoding=zip is unknown: use auto, always or raw")])
def test_wrong_options_are_named(tmp_path, flag, sentence):
    result = run_binary("addend-agent", "--job=job", flag, f"--socket={tmp_path}/s")
    assert result.returncode == 64 and sentence in result.stderr


def test_the_reference_rounds_as_the_specification_says():
    values = np.array([1, 0.51 / 64, -0.0, 127.4 / 64, 2.2e-38] + [0] * 59 + [np.inf, 3], np.float32)
    rounded = reference.round_to("int8", values)
    assert list(rounded[:5]) == [1, 1 / 64, 0, 127 / 64, 0] and not np.signbit(rounded[2])
    assert list(rounded[64:]) == [np.inf, 3], "a block with an infinity stays"
