"""Tests of the Python package against the miniature agent of tests/unit/client: no cluster needed."""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("ADDEND_BIN_DIR", ROOT / "build" / "bin"))
FAKE_AGENT = BIN_DIR.parent / "tests" / "addend-fake-agent"
DEADLINE_S = 120


class FakeAgent:
    """addend-fake-agent as a context manager; its commands are methods."""

    def __init__(self, folder, size):
        self.socket = str(folder / "agent.sock")
        self.size = size
        self._process = subprocess.Popen(
            [FAKE_AGENT, self.socket, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"

    def tell(self, command):
        """Returns the agent's counts when the command is in force."""
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def counts(self):
        return self.tell("counts")

    def run_ranks(self, body, **extra):
        """Runs the function `body` of the calling test module in a process per rank."""
        processes = []
        for rank in range(self.size):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), ADDEND_SOCKET=self.socket)
            env.update(WORLD_SIZE=str(self.size), LOCAL_WORLD_SIZE=str(self.size))
            env.update(PYTHONPATH=f"{ROOT}/python:{ROOT}", OMP_NUM_THREADS="1", **extra)
            code = f"import {body.__module__} as m; m.{body.__name__}()"
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=env,
                    cwd=ROOT,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        try:
            outputs = [p.communicate(timeout=DEADLINE_S)[0] for p in processes]
        finally:
            for process in processes:
                process.kill()
        failed = [r for r, p in enumerate(processes) if p.returncode != 0]
        assert not failed, "ranks %s of %s failed:\n%s" % (
            failed,
            inspect.getsource(body),
            "\n---\n".join(outputs),
        )
        return outputs

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(DEADLINE_S) == 0


@pytest.fixture
def start_agent(tmp_path):
    """start_agent(size) -> FakeAgent"""
    if not FAKE_AGENT.exists():
        pytest.skip(f"{FAKE_AGENT} does not exist: run scripts/build first")
    agents = []

    def start(size):
        agents.append(FakeAgent(tmp_path, size))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()


@pytest.fixture
def one_rank(start_agent):
    """This process as the only rank of a job; gives the agent."""
    import addend

    agent = start_agent(1)
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    yield agent
    addend.shutdown()
