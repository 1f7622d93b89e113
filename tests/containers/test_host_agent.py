"""An agent for all pods of a machine, as the chart's hostAgents run it: containers that share nothing with it but a directory of the machine."""
import os
import tempfile

import pytest

from tests.containers.pods import CONFINED, TRAINER_MOUNTS, TRAINER_USER, Pods
from tests.support.podman import BASE_IMAGE
from tests.support.processes import eventually

RANKS = 3
TRAINER = """
import numpy, addend
addend.init()
total = addend.push_pull(numpy.full(100_000, 2.0 ** addend.rank(), "float32"), "x", op=addend.Sum)
print("sum", set(total.tolist()), "local rank", addend.local_rank(), "node", addend.node_rank(), "of", addend.num_nodes())
addend.shutdown()
"""


@pytest.fixture(scope="module")
def pods(podman, images):
    pods = Pods(podman, images, 0)
    directory = tempfile.mkdtemp()  # as a hostPath: root's
    os.chmod(directory, 0o755)
    pods.directory = f"--volume={directory}:/run/addend"
    with pods.removed_at_the_end():
        podman("network", "create", pods.NETWORK)
        pods.start_scheduler()
        podman("run", "--detach", "--name=agent-0", f"--network={pods.NETWORK}", *CONFINED, "--user=0:65532", pods.directory,
               "--env=ADDEND_SCHEDULER=scheduler:7070", f"--env=ADDEND_JOB={pods.JOB}", f"--env=ADDEND_LOCAL_SIZE={RANKS}",
               "--env=ADDEND_NODE_RANK=trainers", "--env=ADDEND_SOCKET_MODE=0660", "--env=ADDEND_INSECURE=true", images["agent"])
        eventually(lambda: pods.serves("agent-0", "readiness"), 60, "the agent to be ready for trainers")
        yield pods
    os.rmdir(directory)  # an agent that ends leaves no socket


def test_pods_of_their_own_are_ranks_of_a_node_run_after_run(pods):
    for run in range(2):
        for rank in range(RANKS):
            environment = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "ADDEND_LIBRARY": "/addend/lib/libaddend.so",
                           "PYTHONPATH": "/addend/python", "PYTHONDONTWRITEBYTECODE": 1, "ADDEND_JOB": pods.JOB}
            pods.podman("run", "--detach", f"--name=trainer-{run}-{rank}", f"--network={pods.NETWORK}", *CONFINED, *TRAINER_USER, *TRAINER_MOUNTS,
                        pods.directory, *(f"--env={key}={value}" for key, value in environment.items()), BASE_IMAGE, "/usr/bin/python3", "-c", TRAINER)
        for rank in range(RANKS):
            name = f"trainer-{run}-{rank}"
            assert pods.end_status(name, 60) == 0, pods.log(name) + pods.log("agent-0")
            assert f"sum {{7.0}} local rank 0 node {rank} of {RANKS}" in pods.log(name)


def test_it_ends_when_it_is_asked_to(pods):
    assert pods.stop("agent-0") == 0
