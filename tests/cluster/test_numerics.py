"""The same bits, on every rank and for every placement: exactly the sum in node order."""
import itertools

import pytest

from tests.support import cases, reference
from tests.support.cluster import Cluster, SANITIZED

SMALL = [("random", size) for size in (0, 1, 3, 1023)] + [("special", 1023)]
LARGE = [("random", 1_000_003)]
SEVERAL_PARTITIONS = [("random", 250_003)]
# A sufficient subset: every n, L, k and both numbers of shards, each at least twice and not always together.
PLAIN = [(1, 1, 0, 1), (1, 2, 2, 3), (2, 1, 0, 3), (2, 2, 1, 1), (3, 1, 2, 1), (3, 2, 0, 3), (4, 1, 5, 3), (4, 2, 2, 1), (4, 1, 0, 1)]
# The sanitizers check the code and not the bits: every n, every k, both numbers of shards and of local ranks once.
SANITIZED_PLAIN = [(1, 2, 2, 3), (2, 1, 0, 3), (3, 2, 1, 1), (4, 1, 5, 1)]
ALL = list(itertools.product((1, 2, 3, 4), (1, 2), (0, 1, 2, 5), (1, 3)))


def shapes():
    return SMALL if SANITIZED else SMALL + LARGE


def check_matrix(tmp_path, nodes, local_size, cpu_servers, shards, shapes, rounds=1, gpus=None, **options):
    keys = {cases.name_of(d, op, size, kind, r): (d, op, size, kind, r)
            for d in reference.DTYPES for op in reference.OPS for kind, size in shapes for r in range(1, rounds + 1)}
    expected = {key: cases.expected_digest(nodes, local_size, *case) for key, case in keys.items()}
    with Cluster(tmp_path, nodes, local_size, cpu_servers, shards, **options) as cluster:
        ranks = cluster.start_ranks("numerics.py", {
            "dtypes": reference.DTYPES, "ops": reference.OPS, "shapes": shapes, "rounds": rounds, "expected": expected,
            "gpus": gpus})
        for outcome in ranks.join(max(120, 4 * nodes * local_size)):
            assert outcome.result.keys() == expected.keys()
            wrong = [key for key in expected if outcome.result[key] != expected[key]]
            if wrong:
                saved = ranks.folder / f"{wrong[0].replace(' ', '_')}.{outcome.rank}.npy"
                explanation = cases.first_difference(nodes, local_size, *keys[wrong[0]], saved)
                pytest.fail(f"{len(wrong)} of {len(expected)} results are wrong on rank {outcome.rank}; {wrong[0]}: {explanation}")


@pytest.mark.parametrize("nodes,local_size,cpu_servers,shards", SANITIZED_PLAIN if SANITIZED else PLAIN)
def test_result_is_the_sum_in_node_order(tmp_path, nodes, local_size, cpu_servers, shards):
    check_matrix(tmp_path, nodes, local_size, cpu_servers, shards, shapes())


@pytest.mark.full
@pytest.mark.parametrize("nodes,local_size,cpu_servers,shards", [case for case in ALL if case not in PLAIN])
def test_result_is_the_sum_in_node_order_everywhere(tmp_path, nodes, local_size, cpu_servers, shards):
    check_matrix(tmp_path, nodes, local_size, cpu_servers, shards, SMALL + SEVERAL_PARTITIONS)


def test_rounds_do_not_mix(tmp_path):
    check_matrix(tmp_path, 2, 2, 1, 3, [("random", 3), ("special", 1023), ("random", 40_001)], rounds=4)


def test_tiny_partitions_give_the_same_bits(tmp_path):
    check_matrix(tmp_path, 3, 1, 2, 3, [("random", 1), ("random", 1023), ("special", 40_001)],
                 agent_flags=["--partition-bytes=1000"])


def test_cpu_servers_alone_give_the_same_bits(tmp_path):
    check_matrix(tmp_path, 2, 2, 2, 1, SMALL, agent_flags=["--colocated-summation=false"])


def test_one_element_on_eight_nodes(tmp_path):
    check_matrix(tmp_path, 8, 1, 1, 1, [("random", 1), ("random", 0)])
