"""Training over the process group "addend", by a script without a hook: init_process_group("addend") alone."""
import os
import re
import subprocess

import pytest

from tests.cluster.test_training import STEPS, train
from tests.support.cluster import BIN_DIR, PATIENCE, PYTHON, ROOT, Cluster
from tests.support.launched import launched
from tests.support.ports import free_port
from tests.support.processes import eventually


def test_weights_are_the_hooks_bit_for_bit_while_a_server_is_killed(tmp_path):
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=2) as cluster:
        hook = train(cluster, "addend", free_port())
        reference = train(cluster, "reference", free_port())

        def kill_a_server(progress):
            eventually(lambda: progress.exists() and len(progress.read_text().splitlines()) >= STEPS // 4, 120 * PATIENCE, "some steps")
            cluster.servers[0].kill()

        backend = train(cluster, "backend", free_port(), during=kill_a_server)
    assert backend == hook == reference


def test_groups_of_some_ranks_sum_at_the_same_time(tmp_path):
    rows, columns, odd = [[0, 1], [2, 3]], [[0, 2], [1, 3]], [1, 2, 3]
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("process_groups.py", {
            "groups": [*rows, *columns, odd, [3]], "rounds": 3, "size": 4, "store": str(tmp_path / "store")})
        for outcome in ranks.join(120):
            assert outcome.result["wrong"] == [], outcome.rank
            assert outcome.result["left"] == ["allgather"], "Addend itself sums, broadcasts and waits"
        assert "tensor 'torch.distributed/" not in cluster.scheduler.text()


# ---- without an agent ----

ALONE = """
import addend.torch as hvd, torch
hvd.init()
print("rank", hvd.rank(), "of", hvd.size(), hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist(), flush=True)
"""
BY_NAME = """
import addend.torch, torch, torch.distributed as dist
dist.init_process_group("addend")
tensor = torch.ones(2)
dist.all_reduce(tensor)
print("rank", dist.get_rank(), "of", dist.get_world_size(), tensor.tolist(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("program,size", [(ALONE, 1), (ALONE, 3), (BY_NAME, 3)], ids=["alone", "torchrun", "process group"])
def test_a_script_without_an_agent_just_starts(program, size):
    outputs = launched(program, size)
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of {size} [{size:.1f}, {size:.1f}]" in output, outputs
    lines = re.findall(r"^addend: no agent runs here: started a scheduler and an agent for (.*) \(ADDEND_AUTOSTART=0 refuses\)$", "\n".join(outputs), re.M)
    assert lines == ["this process alone" if size == 1 else f"the {size} ranks of this machine"]


NO_STORE = """
import addend.torch._backend
constructor = addend.torch._backend._Group.__init__
def only_without_store(self, *place):
    if len(place) == 3:
        raise TypeError("PyTorch's own words")
    constructor(self, *place)
addend.torch._backend._Group.__init__ = only_without_store
""" + BY_NAME


def test_a_constructor_that_makes_no_subclass_is_avoided(tmp_path):
    """PyTorch 2.7 to 2.13 have such a constructor, which takes the store; Debian packages other versions."""
    for output in launched(NO_STORE, 2):
        assert "of 2 [2.0, 2.0]" in output, output


def test_what_was_started_ends_when_the_ranks_are_killed(tmp_path):
    ready = tmp_path / "ready"
    program = ALONE + f"open({str(ready)!r}, 'w').close()\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    launched(program, 1, TMPDIR=str(tmp_path))
    assert ready.exists()
    eventually(lambda: not mine(tmp_path), 10 * PATIENCE, "the end of the services")


def mine(folder):
    """The command lines of this user's services that a guardian with this TMPDIR has started."""
    found = []
    for process in os.listdir("/proc"):
        try:
            with open(f"/proc/{process}/environ", "rb") as environment, open(f"/proc/{process}/cmdline", "rb") as command:
                if f"TMPDIR={folder}".encode() in environment.read().split(b"\0"):
                    found.append(command.read().replace(b"\0", b" "))
        except OSError:
            continue
    return found


SPAWNED = """
import sys, time, torch, torch.distributed as dist, torch.multiprocessing
import addend.torch

def train(rank, size, store):
    dist.init_process_group("addend", init_method="file://" + store, rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    if rank == 0:
        time.sleep(1)  # the others have ended
        addend.torch.allreduce_async(torch.ones(1), name="alone")  # an error if a rank had died
        print("rank 0 goes on", flush=True)

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (3, sys.argv[1]), nprocs=3)
"""


def test_spawned_ranks_leave_at_their_end(tmp_path):
    """They have no launcher's variables, and nothing of atexit runs in them."""
    (tmp_path / "spawned.py").write_text(SPAWNED)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/python", "ADDEND_BIN_DIR": str(BIN_DIR), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([PYTHON, tmp_path / "spawned.py", tmp_path / "store"], env=env, text=True, timeout=60 * PATIENCE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and "rank 0 goes on" in done.stdout, done.stdout


AGAIN = """
import os, torch, torch.distributed as dist
import addend.torch
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for turn in range(5):
    # Not by MASTER_PORT: a rank could reach the former group's store.
    dist.init_process_group("addend", init_method=f"file://{os.environ['STORE']}{turn}", rank=rank, world_size=size)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0] == size
    dist.destroy_process_group()
print("done", flush=True)
"""


def test_a_process_group_can_be_made_again(tmp_path):
    """Some ranks join the next generation of the job before others have left the former."""
    outputs = launched(AGAIN, 3, STORE=str(tmp_path / "store"))
    assert all(output.splitlines()[-1] == "done" for output in outputs), outputs


def test_a_refusal_says_what_is_missing(tmp_path):
    (output,) = launched(ALONE, 1, ADDEND_AUTOSTART="0", ADDEND_CONNECT_TIMEOUT="1")
    assert "no agent at /run/addend/agent.sock after 1 s" in output
    (output,) = launched(ALONE, 1, ADDEND_BIN_DIR=str(tmp_path))
    assert f"starting one has failed: addend-scheduler, addend-summation, addend-agent are not in {tmp_path}: run scripts/build" in output
