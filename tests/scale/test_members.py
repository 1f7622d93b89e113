"""One scheduler and very many members, by real calls: all of them learn the plan, and later only what has changed."""
import pytest

from tests.support.cluster import SANITIZED
from tests.support.members import measure

pytestmark = pytest.mark.skipif(bool(SANITIZED), reason="thousands of connections take too long there")


# The largest takes all of two processors, and runs alone.
@pytest.mark.parametrize("nodes,cpu_servers", [(128, 64), pytest.param(1638, 819, marks=[pytest.mark.full, pytest.mark.timing])])
def test_members_of_a_large_job_learn_its_plan_and_later_only_what_changes(nodes, cpu_servers):
    steps = {step["step"]: step for step in measure(nodes, cpu_servers, beat="3s", scheduler_flags=["--lease=30s"])}
    assert list(steps) == ["join", "begin", "plan", "death", "beat"], "addend-bench-members awaits all nodes in each"
    assert steps["beat"]["members"] == 2 * nodes + cpu_servers
    servers = nodes + cpu_servers
    # BERT-large: a server of the plan takes some 60 bytes of an update, a partition some 5.
    assert steps["plan"]["to_nodes"] / nodes < 100 * servers + 100_000, "each node is told each server and each partition once"
    assert steps["death"]["to_nodes"] / nodes < 80_000, "each node is told the tensors of the dead server once"
    assert steps["beat"]["to_nodes"] == 0, "nothing has changed"


def test_a_scheduler_that_writes_everything_down_serves_a_large_job_too():
    steps = measure(64, 32, beat="1s", store="sqlite", scheduler_flags=["--lease=30s"])
    assert [step["step"] for step in steps] == ["join", "begin", "plan", "death", "beat"]
