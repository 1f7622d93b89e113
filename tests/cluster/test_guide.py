"""Everything that docs/pytorch.md and docs/migrating.md show: programs run as they stand there, with the lines of a script around them; commands too.

tests/slurm runs the commands of Slurm.
"""
import os
import re
import subprocess

import pytest

from tests.support.cluster import BIN_DIR, PATIENCE, PYTHON, ROOT, Cluster
from tests.support.launched import TORCHRUN_FLAGS, launched, skip_without_torchrun
from tests.support.ports import free_port

PYTORCH, MIGRATING = ((ROOT / "docs" / name).read_text() for name in ("pytorch.md", "migrating.md"))
# A checkout is not installed, so that PyTorch does not find the backend by itself.
IMPORTS = "import addend.torch, os, torch\nrank = int(os.environ['RANK'])\n"
MODEL = "torch.manual_seed(7)\nmodel = torch.nn.Linear(4, 2)\nweights = [parameter.clone() for parameter in model.parameters()]\n"
TRAIN = """
for step in range(steps):
    optimizer.zero_grad()
    model(torch.full((1, 4), float(rank + step))).sum().backward()
    optimizer.step()
"""
TRAINED = """
model(torch.ones(1, 4))  # of CrossBarrier: waits for the last step
assert all(not torch.equal(before, now) for before, now in zip(weights, model.parameters()))
"""
END_GROUP = "\ntorch.distributed.destroy_process_group()\n"


class Program:
    """A block of a guide that has a phrase, and a script around it for each of two ranks."""

    def __init__(self, phrase, before="", after="", guide=PYTORCH):
        self.phrase, self.guide, self._before, self._after = phrase, guide, before, after

    def script(self):
        return IMPORTS + self._before + block_with(self.phrase, "python", self.guide) + self._after + "\nprint('done')\n"


PROGRAMS = [
    Program('init_process_group("addend")'),
    Program("addend.torch as hvd", after="hvd.init()\nassert hvd.allreduce(torch.full((2,), float(rank)), name='a').tolist() == [0.5, 0.5]\n"),
    Program("addend.torch.ddp_comm_hook", MODEL,
            "model(torch.full((1, 4), float(rank))).sum().backward()\nassert model.module.weight.grad[0, 0] == 0.5\n" + END_GROUP),
    Program("addend.torch.shadow(model, steps=50)", "torch.distributed.init_process_group('gloo')\n" + MODEL,
            "for step in range(50):\n    model(torch.full((1, 4), float(rank))).sum().backward()\nassert rank or watcher.report['steps'] == 50\n" + END_GROUP),
    Program("addend.torch.CrossBarrier", "addend.torch.init()\n" + MODEL + "steps = 3\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
            TRAIN + TRAINED),
    Program("addend.torch.AsyncOptimizer", "addend.torch.init()\n" + MODEL + "steps = 3\n", TRAIN + TRAINED + "addend.torch.barrier()\n"),
    Program("was: import horovod.torch", after="hvd.barrier()\nhvd.shutdown()\n", guide=MIGRATING),
    Program("hvd.elastic.run", after="hvd.shutdown()\n", guide=MIGRATING),
    Program("was: import byteps.torch", after="assert bps.push_pull(torch.ones(2), name='a').tolist() == [1.0, 1.0]\nbps.shutdown()\n", guide=MIGRATING),
]


def blocks(language, guide=PYTORCH):
    return [block for name, block in re.findall(r"^```(\w*)\n(.*?)^```$", guide, re.M | re.S) if name == language]


def block_with(phrase, language="python", guide=PYTORCH):
    (block,) = (block for block in blocks(language, guide) if phrase in block)
    return block


def test_the_guide_begins_with_the_one_string():
    assert PROGRAMS[0].phrase in blocks("python")[0]


@pytest.mark.parametrize("guide", [PYTORCH, MIGRATING], ids=["pytorch", "migrating"])
def test_every_program_of_the_guide_is_run(guide):
    for block in blocks("python", guide):
        here = [program for program in PROGRAMS if program.guide is guide and program.phrase in block]
        assert len(here) == 1, f"tests/cluster/test_guide.py does not run this:\n{block}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.phrase)
def test_a_program_of_the_guide_runs(program):
    for output in launched(program.script(), 2):
        assert output.splitlines()[-1] == "done", output


def test_a_shadow_prints_the_verdict_that_the_guide_shows():
    program = next(program for program in PROGRAMS if "shadow" in program.phrase)
    output = launched(program.script(), 2)[0]
    shown = block_with("addend shadow:", "")
    for line in shown.splitlines()[:-1]:
        form = re.sub(r"\d[\d.]*", "NUMBER", line)
        assert re.search(re.escape(form).replace("NUMBER", r"\d[\d.e-]*"), output), f"{line}\n{output}"


TRAINER = """
import argparse, addend.torch, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs
dist.init_process_group("addend")
tensor = torch.ones(2)
dist.all_reduce(tensor)
print("sum", tensor.tolist(), "epochs", epochs, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path):
    """With a train.py, and the commands that an installed Addend has."""
    (tmp_path / "train.py").write_text(TRAINER)
    command = tmp_path / "addend"
    command.write_text(f'#!/bin/sh\nexec {PYTHON} -m addend "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run_shell(folder, command, **more):
    env = {**os.environ, "PATH": f"{folder}:{BIN_DIR}:{os.path.dirname(PYTHON)}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}/python", "ADDEND_BIN_DIR": str(BIN_DIR),
           "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=env, timeout=120 * PATIENCE, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("line,epochs", [(0, 3), (1, 1)])
def test_the_launchers_commands_run(folder, line, epochs):
    command = block_with("addend run -n 4", "").splitlines()[line]
    said = run_shell(folder, command)
    assert said.count(f"sum [4.0, 4.0] epochs {epochs}") == 4, said


def test_the_agents_command_and_torchrun_train_on_two_nodes(folder):
    """Each node's commands as the guide has them, both nodes on this machine."""
    skip_without_torchrun()
    agent, torchrun = (line.split("  # ")[0] for line in block_with("addend-agent --insecure", "").splitlines())
    port = free_port()
    with Cluster(folder, nodes=0) as cluster:
        script = ["export USE_LIBUV=0", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", "ranks="]
        for node in (0, 1):
            socket = f"{folder}/agent-{node}.sock"
            words = {"SCHEDULER:7070": cluster.scheduler_address, "JOB": "guide", "=N ": "=2 ", "=L ": "=2 ", "/run/addend/agent.sock": socket}
            script.append(f"export GROUP_RANK={node} ADDEND_SOCKET={socket}")
            script.append(replaced(agent, words) + " --listen=127.0.0.1:0 --data-listen=127.0.0.1:0 --advertise=127.0.0.1 --http=127.0.0.1:0 --health-listen=127.0.0.1:0 &")
            rendezvous = f"torchrun {' '.join(TORCHRUN_FLAGS)} --master_addr=127.0.0.1 --master_port={port} --node_rank={node}"
            script.append(replaced(torchrun, {"torchrun": rendezvous, "=N ": "=2 ", "=L ": "=2 ", "...": ""}) + " & ranks=\"$ranks $!\"")
        script.append("for pid in $ranks; do wait $pid; done")
        said = run_shell(folder, "\n".join(script))
    assert said.count("sum [4.0, 4.0]") == 4, said


def replaced(text, words):
    for word, by in words.items():
        assert word in text, f"{word}: {text}"
        text = text.replace(word, by)
    return text


def test_horovodruns_command_runs(folder):
    command = block_with("addend run -np", "", MIGRATING).split("  # ")[0]
    assert run_shell(folder, command).count("sum [4.0, 4.0] epochs 1") == 4


@pytest.mark.parametrize("name", ["horovod", "byteps"])
def test_the_packages_are_installed_as_the_guide_says(tmp_path, name):
    command = block_with(f"compat/{name}", "", MIGRATING)
    assert command.startswith("pip install ./python ./python/compat/")
    options = f"install --no-build-isolation --no-deps --no-index --quiet --target {tmp_path / 'installed'}"
    done = subprocess.run(["bash", "-c", command.replace("pip install", f"{PYTHON} -m pip {options}")], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0, done.stdout
    program = f"import {name}.torch as one; one.init(); print(one.__file__, one.size())"
    (said,) = launched(program, 1, PYTHONPATH=str(tmp_path / "installed"))
    assert f"installed/{name}/torch/__init__.py 1" in said, said
