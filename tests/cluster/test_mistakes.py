"""Mistakes of users: each ends, or is told on standard error, within 12 s, in a sentence that names both sides."""
import os
import re
import subprocess
import time

import pytest

from tests.support.cluster import BIN_DIR, PATIENCE, PYTHON, Cluster
from tests.support.processes import eventually

pytestmark = pytest.mark.timing
LIMIT_S = 12 * PATIENCE
START = "import os, signal, time, torch, addend, addend.torch as hvd\nhvd.init()\nhvd.allreduce(torch.ones(2), name='warm')\n"
STAY = "time.sleep(30)\n"


class Attempt:
    """Two ranks that run a program each, on the same node or on two."""

    def __init__(self, folder, first, second, nodes=2):
        self.cluster = Cluster(folder, nodes=nodes, local_size=2 // nodes, cpu_servers=1)
        self.programs = [first, second]

    def __enter__(self):
        self.cluster.__enter__()
        self.ranks = self.cluster.start_ranks("program.py", {"programs": self.programs})
        return self

    def __exit__(self, *error):
        for process in self.ranks.processes.values():
            if process.returncode is None:
                process.kill()
        return self.cluster.__exit__(*error)

    def says(self, rank, pattern):
        """Waits for a sentence in the rank's output: for the limit, and for the start of Python."""
        eventually(lambda: re.search(pattern, self.ranks.processes[rank].text()), LIMIT_S + 8 * PATIENCE, f"rank {rank}: {pattern}")

    def seconds(self, rank, marker, pattern):
        """The time between two sentences of a rank."""
        process = self.ranks.processes[rank]
        eventually(lambda: re.search(marker, process.text()), 60 * PATIENCE, marker)
        began = time.monotonic()
        self.says(rank, pattern)
        return time.monotonic() - began


def allreduces(*names):
    return START + "print('begins', flush=True)\n" + "".join(f"hvd.allreduce(torch.ones(3), name='{name}')\n" for name in names)


@pytest.mark.parametrize("nodes", [2, 1])
def test_unnamed_tensors_of_different_shapes_are_a_mismatch_at_once(tmp_path, nodes):
    programs = [START + f"print('begins', flush=True)\nhvd.allreduce(torch.ones({elements}))\n" for elements in (3, 4)]
    with Attempt(tmp_path, *programs, nodes=nodes) as attempt:
        for rank in (0, 1):
            seconds = attempt.seconds(rank, "begins", r"MismatchError: rank (\d) calls '[^']*\[3\]' where rank (\d) calls '[^']*\[4\]': all ranks must call")
            assert seconds < 4 * PATIENCE


def test_collectives_of_different_shapes_are_a_mismatch_at_once(tmp_path):
    store = tmp_path / "store"
    program = ("import addend.torch, torch, torch.distributed as dist\n"
               f"dist.init_process_group('addend', init_method='file://{store}', rank=RANK, world_size=2)\n"
               "dist.barrier()\nprint('begins', flush=True)\ndist.all_reduce(torch.ones(3 + RANK))\n")
    with Attempt(tmp_path, program, program) as attempt:
        for rank in (0, 1):
            seconds = attempt.seconds(rank, "begins", r"rank (\d) calls 'all_reduce/\S*\[3\]' where rank (\d) calls 'all_reduce/\S*\[4\]'")
            assert seconds < 4 * PATIENCE


def test_another_order_of_unnamed_tensors_of_one_kind_is_a_mismatch(tmp_path):
    programs = [START + f"hvd.allreduce(torch.ones({first}))\nhvd.allreduce(torch.ones({second}))\n" for first, second in ((3, 4), (4, 3))]
    with Attempt(tmp_path, *programs) as attempt:
        attempt.says(0, r"rank 0 calls '[^']*\[3\]' where rank 1 calls '[^']*\[4\]'")


@pytest.mark.parametrize("nodes,both", [
    (2, r"float32 \[\d\] average by node \d but as float32 \[\d\] average by node \d"),
    (1, r"float32 \[\d\] average (by rank \d but as|and as) float32 \[\d\] average by rank"),
])
def test_named_tensors_of_different_shapes_are_a_mismatch(tmp_path, nodes, both):
    again = "print('and then', hvd.allreduce(torch.ones(5), name='w').tolist(), flush=True)\n"
    programs = [START + f"try:\n    hvd.allreduce(torch.ones({elements}), name='w')\nexcept hvd.MismatchError as error:\n    print(error, flush=True)\n" + again
                for elements in (3, 4)]
    with Attempt(tmp_path, *programs, nodes=nodes) as attempt:
        for rank in (0, 1):
            attempt.says(rank, "tensor 'w' is declared as " + both)
            attempt.says(rank, r"and then \[1.0, 1.0, 1.0, 1.0, 1.0\]")


def test_another_order_of_names_says_for_what_each_rank_waits(tmp_path):
    with Attempt(tmp_path, allreduces("a", "b") + STAY, allreduces("b", "a") + STAY) as attempt:
        for rank, (mine, other) in enumerate(("ab", "ba")):
            waits = rf"round 1 of tensor '{mine}' is open for 1\d s: node {1 - rank} \(on \S+, rank {1 - rank}\) has not pushed it, and waits for tensor '{other}' instead \(its round 1\)"
            assert attempt.seconds(rank, "begins", waits) < LIMIT_S + PATIENCE


def test_a_rank_that_stands_still_is_named(tmp_path):
    with Attempt(tmp_path, allreduces("a") + STAY, START + "os.kill(os.getpid(), signal.SIGSTOP)\n") as attempt:
        assert attempt.seconds(0, "begins", r"round 1 of tensor 'a' is open for 1\d s: node 1 \(on \S+, rank 1\) has not pushed it") < LIMIT_S + PATIENCE


def test_a_rank_that_does_something_else_is_told_that_it_is_waited_for(tmp_path):
    with Attempt(tmp_path, allreduces("a") + STAY, START + "print('begins', flush=True)\n" + STAY) as attempt:
        waits = r"round 1 of tensor 'a' is open for 1\d s on other nodes: node 1 \(on \S+, rank 1\) has not pushed it"
        assert attempt.seconds(1, "begins", waits) < LIMIT_S + 2 * PATIENCE


@pytest.mark.parametrize("end,words", [("os.kill(os.getpid(), signal.SIGKILL)", "ended without shutdown"), ("hvd.shutdown()", "has left by shutdown")])
def test_a_rank_that_is_killed_or_leaves_is_named(tmp_path, end, words):
    with Attempt(tmp_path, allreduces("a"), START + end + "\n") as attempt:
        attempt.says(0, rf"PeerLostError: rank 1 \(local rank 0 of node 1, pid \d+ on \S+\) {words}")


def test_a_rank_with_another_backend_is_waited_for_by_name(tmp_path):
    store = tmp_path / "store"
    program = f"import addend.torch, torch.distributed as dist\ndist.init_process_group('%s', init_method='file://{store}', rank=RANK, world_size=2)\n"
    with Attempt(tmp_path, program % "addend", program % "gloo") as attempt:
        attempt.says(0, r"waiting for node 1 of 2 \(node ranks 0\.\.1\): agent connected, trainer not initialised")


def alone(program, **environment):
    began = time.monotonic()
    result = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, timeout=LIMIT_S,
                            env={**os.environ, "PYTHONPATH": "python", **environment})
    assert result.returncode != 0 and time.monotonic() - began < LIMIT_S
    return result.stderr


def test_no_agent(tmp_path):
    said = alone("import addend.torch as hvd; hvd.init()", ADDEND_SOCKET=str(tmp_path / "none.sock"), RANK="0", WORLD_SIZE="2", ADDEND_CONNECT_TIMEOUT="2")
    assert re.search(r"no agent at \S+none\.sock after 2 s: no such file or directory; start addend-agent on this machine", said), said


def test_a_typo_in_the_backend():
    said = alone("import addend.torch, torch.distributed as dist; dist.init_process_group('adend', init_method='tcp://127.0.0.1:1', rank=0, world_size=1)")
    assert re.search("[Bb]ackend.*adend", said), said  # PyTorch's own sentence


def test_a_full_disk(tmp_path):
    """A scheduler that cannot write says so, and which file it is."""
    full = tmp_path / "full"
    full.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(full)]).returncode != 0:
        pytest.skip("only root makes a small disk")
    try:
        (full / "filler").write_bytes(bytes(12 << 10))
        result = subprocess.run([BIN_DIR / "addend-scheduler", "--insecure", "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=off", f"--store=sqlite:{full}/state.db"],
                                capture_output=True, text=True, timeout=LIMIT_S)
        assert result.returncode not in (0, 70), result
        assert f"{full}/state.db" in result.stderr and "full" in result.stderr, result.stderr
    finally:
        subprocess.run(["umount", str(full)], check=True)
