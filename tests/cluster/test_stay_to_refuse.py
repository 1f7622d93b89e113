"""An agent that cannot start for good, as a sidecar: it counts as ready, and its trainers end with the reason, so that the job can fail."""
import json
import socket

import pytest

from tests.support.cluster import PATIENCE, Cluster
from tests.support.grpc_process import health
from tests.support.ports import free_port
from tests.support.processes import eventually


@pytest.fixture
def cluster(tmp_path):
    """A scheduler, and room for two nodes."""
    with Cluster(tmp_path, nodes=0) as cluster:
        cluster.nodes = 2
        yield cluster


def start(cluster, *flags):
    """The agent of node 1; and where its probes ask."""
    port = free_port()
    agent = cluster.start("second", [cluster.bin_dir / "addend-agent", "--insecure", *cluster.agent_command_flags(1), "--http=127.0.0.1:0",
                                     f"--health-listen=127.0.0.1:{port}", *flags])
    return agent, f"127.0.0.1:{port}"


@pytest.mark.parametrize("flag,status,word", [
    ("--partition-bytes=8KiB", 65, "partition"),  # node 0 has another
    ("--node-rank=0", 64, "node"),  # there is one
    ("--transport=rdma", 64, "RDMA"),  # this machine has none
    ("--num-nodes=1", 64, "node 1, but must be"),
    ("--num-nodes=two", 64, "num-nodes"),
    ("--job-secret-file=/nowhere", 64, "/nowhere"),
    ("--tls-ca=/nowhere", 64, "tls"),
])
def test_trainers_hear_why_their_agent_cannot_start_however_late_they_are(cluster, flag, status, word):
    cluster.await_ports(cluster.start_agent(0))
    agent, port = start(cluster, flag, "--stay-to-refuse")
    eventually(lambda: health(port, "readiness") == "SERVING", 10 * PATIENCE, "the agent to count as ready")
    assert health(port) == "SERVING"
    for _ in range(2):  # the second as after a restart of the trainer's container
        trainer, = cluster.run_ranks("attempt.py", ranks=[1])
        assert trainer.result["init"]["code"] == status and word in trainer.result["init"]["text"], json.dumps(trainer.result)
    assert agent.returncode is None, agent.tail()
    assert agent.stop() == status


def test_an_agent_whose_port_is_taken_names_the_port_and_answers_no_call_of_what_is_gone(cluster):
    cluster.await_ports(cluster.start_agent(0))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        agent, port = start(cluster, f"--http=127.0.0.1:{taken.getsockname()[1]}", "--stay-to-refuse")
        eventually(lambda: health(port, "readiness") == "SERVING", 10 * PATIENCE, "the agent to count as ready")
        trainer, = cluster.run_ranks("attempt.py", ranks=[1])
    assert trainer.result["init"]["code"] == 64 and "cannot listen" in trainer.result["init"]["text"], trainer.result
    assert agent.stop() == 64


def test_who_asks_for_the_configuration_is_answered_at_once(cluster):
    agent, _ = start(cluster, "--num-nodes=two", "--stay-to-refuse", "--print-config")
    assert agent.wait(10 * PATIENCE) == 64


def test_without_the_flag_it_ends(cluster):
    cluster.await_ports(cluster.start_agent(0))
    agent, _ = start(cluster, "--partition-bytes=8KiB")
    assert agent.wait(10 * PATIENCE) == 65


def test_what_a_new_attempt_may_mend_ends_it_all_the_same(cluster):
    agent, _ = start(cluster, f"--scheduler=127.0.0.1:{free_port()}", "--connect-timeout=1s", "--stay-to-refuse")
    assert agent.wait(20 * PATIENCE) == 76
