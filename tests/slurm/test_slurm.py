"""Jobs of Slurm, on three nodes that are daemons of this machine: the batch scripts of examples/slurm as they stand."""
import os
import re
import shutil
import sys

import pytest

from tests.support.cluster import BIN_DIR, PATIENCE, PYTHON, ROOT
from tests.support.processes import eventually
from tests.support.slurm import Slurm

SCRIPTS = ROOT / "examples" / "slurm"
STEPS = 40


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    for example in ("resumable.py", "train_char_transformer.py"):
        shutil.copy(ROOT / "examples" / example, folder)
    programs = folder / "bin"
    programs.mkdir()
    for name, command in (("addend", f"{PYTHON} -m addend"), ("python3", PYTHON)):
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}/python", "ADDEND_BIN_DIR": str(BIN_DIR), "ADDEND_LOG_LEVEL": "info",
                   "USE_LIBUV": "0"}
    with Slurm(folder, environment) as one:
        yield one


@pytest.fixture(autouse=True)
def without_a_checkpoint(slurm):
    (slurm.folder / "resumable.pt").unlink(missing_ok=True)


def checksum(said):
    found = re.findall(r"SHA-256 of the weights: (\w{64})", said)
    assert len(found) == 1, said
    return found[0]


def folders():
    return {name for name in os.listdir("/tmp") if re.match(r"addend-\d+-\d+-\d+\.", name)}


BEFORE = folders()  # of an earlier run that was killed


def left_over():
    """Processes and folders that no job should leave behind."""
    found = sorted(folders() - BEFORE)
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if "addend-agent" in words[0] and any("/.addend-" in word for word in words):
            found.append(" ".join(words))
    return found


@pytest.fixture(scope="module")
def undisturbed(slurm):
    (slurm.folder / "resumable.pt").unlink(missing_ok=True)
    said = slurm.wait(slurm.submit(SCRIPTS / "train.sbatch", f"--steps={STEPS}"))
    assert "summation server" in said and "the training has ended" in said, said
    return checksum(said)


def test_a_preempted_job_ends_with_the_checksum_of_an_undisturbed_run(slurm, undisturbed):
    job = slurm.submit(SCRIPTS / "train.sbatch", f"--steps={STEPS}", "--pause=0.25")
    eventually(lambda: (slurm.folder / "resumable.pt").exists(), 60 * PATIENCE, "a checkpoint")
    slurm.wait(slurm.submit("--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"))
    assert "stopped after step" in slurm.output(job)
    slurm.run("scontrol", "update", f"jobid={job}", "starttime=now")  # Slurm waits for two minutes otherwise
    said = slurm.wait(job)
    assert "resuming after step" in said and checksum(said) == undisturbed, said
    assert not left_over()


def test_a_heterogeneous_job_sums_on_its_other_component(slurm, undisturbed):
    said = slurm.wait(slurm.submit(SCRIPTS / "heterogeneous.sbatch", f"--steps={STEPS}"))
    assert "summation server" in said and checksum(said) == undisturbed, said


def test_each_task_may_be_a_rank(slurm, undisturbed):
    (slurm.folder / "tasks.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --output=addend-%j.out\n"
        f"srun addend run -- python3 resumable.py --checkpoint=resumable.pt --steps={STEPS}\n")
    assert checksum(slurm.wait(slurm.submit("tasks.sbatch"))) == undisturbed
    assert not left_over()


TRAIN = """
import addend, numpy
addend.init()
print("sum", addend.push_pull(numpy.ones(2, numpy.float32), "t", addend.Sum).tolist(), flush=True)
addend.shutdown()
"""


def commands():
    """Every line of the documents that begins with srun."""
    for name in ("slurm.md", "migrating.md"):
        for _, block in re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.M | re.S):
            yield from (line.split("  # ")[0] for line in block.splitlines() if line.startswith("srun"))


@pytest.mark.parametrize("line", commands())
def test_the_commands_of_the_documents_run(slurm, line):
    (slurm.folder / "train.py").write_text(TRAIN)
    assert step(slurm, line, tasks=int(re.search(r"--ntasks-per-node=(\d)", line)[1])).count("sum [8.0, 8.0]") == 8


def step(slurm, line, nodes=2, tasks=1):
    """The output of a job of a single line."""
    (slurm.folder / "line.sbatch").write_text(f"#!/bin/bash\n#SBATCH --nodes={nodes} --ntasks-per-node={tasks} --output=addend-%j.out\n{line}\n")
    return slurm.wait(slurm.submit("line.sbatch"))


def test_errors_have_slurms_names_of_the_nodes(slurm):
    program = "import addend, os, numpy; addend.init(); addend.rank() or addend.push_pull(numpy.ones(2), 't'); os._exit(9)"
    said = step(slurm, f'srun addend run -- python3 -c "{program}"')
    assert re.search(r"PeerLostError: .*rank 1 .*on n2", said), said
    assert "the services' logs are in /tmp/addend-logs-" in said
    for folder in re.findall(r"/tmp/addend-logs-\w+", said):
        shutil.rmtree(folder, ignore_errors=True)


def test_a_cancelled_job_leaves_nothing(slurm):
    job = slurm.submit(SCRIPTS / "train.sbatch", f"--steps={STEPS}", "--pause=1")
    eventually(lambda: "summation server" in slurm.output(job), 60 * PATIENCE, "the server")
    slurm.run("scancel", job)
    slurm.wait(job)
    eventually(lambda: not left_over(), 30 * PATIENCE, "the end of its processes")


@pytest.mark.parametrize("line,tasks,sentence", [
    ("srun --nodes=2 --ntasks=3 --ntasks-per-node=2 addend run -- true", 2, "the nodes of this step have 2, 1 tasks: all need the same number"),
    ("addend serve", 1, "addend serve is a task of srun"),
    ("srun addend run --log-dir", 1, "expected one argument"),
    ("srun addend run --servers 1 -- true", 1, "`srun addend serve` starts summation servers"),
])
def test_mistakes_get_a_sentence(slurm, line, tasks, sentence):
    assert sentence in step(slurm, line, tasks=tasks), sys.version


def test_a_step_of_two_components_is_refused(slurm):
    (slurm.folder / "both.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --output=addend-%j.out\n#SBATCH hetjob\n#SBATCH --nodes=1 --ntasks-per-node=1\n"
        "srun --het-group=0 addend run -- true : --het-group=1 addend serve\n")
    assert "several components of a heterogeneous job: start addend run and addend serve by an srun each" in slurm.wait(slurm.submit("both.sbatch"))
