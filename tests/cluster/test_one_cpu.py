"""On a single processor the agent's server lives on the agent's thread, and nobody looks for messages instead of sleeping."""
import os
import pathlib

import pytest

from tests.support.cluster import Cluster
from tests.support.rounds import finish, goes_on, running


@pytest.fixture
def one_cpu():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def threads(process):
    return [(task / "comm").read_text().strip() for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir()]


def test_a_server_is_killed_and_every_round_has_its_bits(one_cpu, tmp_path):
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=1, shards=2) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        for agent in cluster.agents.values():
            names = threads(agent)
            assert "agent" in names and not any(name.startswith("sum-") for name in names), names
        cluster.servers[0].kill()
        goes_on(ranks)
        finish(ranks)


def test_with_several_processors_they_have_threads_of_their_own(tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one processor")
    with Cluster(tmp_path, nodes=1) as cluster:
        assert any(name.startswith("sum-") for name in threads(cluster.agents[0]))
