"""Sizes that a job's members choose: impossible sizes are refused at registration, without an effect on other jobs."""
import pytest

from tests.support.cluster import Cluster
from tests.support.hand_made import Caller, registration
from tests.support.rounds import finish, goes_on, running


@pytest.mark.parametrize("nodes, local_size", [(2, 1 << 31), (2, 1 << 30), (65536, 32768), (1, (1 << 32) - 1), (65537, 1), (0, 1), (1, 0)])
def test_a_job_whose_ranks_have_no_numbers_is_refused_in_one_sentence(tmp_path, nodes, local_size):
    """Two nodes of 2^31 ranks: their number in 32 bits is 0, by which the server divided an integer average."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, agent_flags=["--colocated-summation=false"]) as cluster:
        ranks = running(cluster)
        with Caller(cluster.scheduler_address) as caller:
            for node in range(min(2, nodes) or 1):
                said = caller.call("Scheduler", "RegisterNode", **registration("hostile", node, nodes, local_size))
                assert said.code == "INVALID_ARGUMENT"
                assert ("--local-size=" in said.details or "--num-nodes=" in said.details) and "must be between 1 and" in said.details, said.details
        goes_on(ranks)
        finish(ranks)
        assert cluster.servers[0].returncode is None
