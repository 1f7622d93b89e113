"""addend run: the real services and small ranks, started and ended by the command."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import uuid

import pytest

from addend import _autostart
from tests.support.certificates import Authority
from tests.support.processes import Process, eventually

from .conftest import BIN_DIR, DEADLINE_S, ROOT

# Programs of a line for ranks: a sum over the job, and torchrun's variables.
SUM = "import addend, numpy; addend.init(); s = addend.push_pull(numpy.ones(5), 't', addend.Sum)[0]; "
LEAVE = "addend.shutdown()"


def environment(**more):
    env = {key: value for key, value in os.environ.items() if not key.startswith("ADDEND_")}
    env.update(PYTHONPATH=f"{ROOT}/python", ADDEND_BIN_DIR=str(BIN_DIR), PYTHONDONTWRITEBYTECODE="1")
    env.update(OPENBLAS_NUM_THREADS="1", **more)
    return env


def run(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "addend", *map(str, arguments)],
        capture_output=True, text=True, timeout=DEADLINE_S, env=environment(**more),
    )


def python(code):
    return ["--", sys.executable, "-c", code]


def lines_of(result):
    """{rank: its lines} of the standard output."""
    lines = {}
    for line in result.stdout.splitlines():
        prefix, text = line.split("] ", 1)
        lines.setdefault(int(prefix[1:]), []).append(text)
    return lines


def running_with(word):
    """The ids of processes whose command line or environment contains a word of this test."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if word.encode() in text:
                found.append(int(entry.name))
    return found


def test_ranks_of_several_nodes_join_one_job(tmp_path):
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"]
    code = SUM + "import json, os; print(json.dumps([s, addend.num_nodes(), *map(os.environ.get, %r)])); "
    code %= (names + ["ADDEND_JOB"],)
    result = run("run", "-n", 2, "--nodes", 2, "--servers", 1, "--job", "pair", "--log-dir", tmp_path,
                 *python(code + LEAVE))
    assert result.returncode == 0, result.stderr
    for rank, (line,) in sorted(lines_of(result).items()):
        assert json.loads(line) == [
            4.0, 2, str(rank), "4", str(rank % 2), "2", str(rank // 2), "127.0.0.1", "pair"]
    assert len(lines_of(result)) == 4
    logs = {path.name for path in tmp_path.iterdir()}
    assert logs == {"scheduler.log", "summation-server-0.log", "agent-of-node-0.log", "agent-of-node-1.log"}


def test_services_take_mutual_tls_from_the_environment(tmp_path):
    mine = Authority(tmp_path, "authority").sign("all")
    result = run("run", "-n", 1, "--nodes", 2, "--servers", 1, "--log-dir", tmp_path / "logs", *python(SUM + "print(s); " + LEAVE),
                 ADDEND_TLS_CERT=str(mine / "tls.crt"), ADDEND_TLS_KEY=str(mine / "tls.key"), ADDEND_TLS_CA=str(mine / "ca.crt"))
    assert result.returncode == 0, result.stderr
    logs = [path.read_text() for path in (tmp_path / "logs").glob("*.log")]
    assert sum("the control plane is mutual TLS" in log for log in logs) == 4, "scheduler, server and two agents"


def test_a_script_is_run_by_this_python_and_its_arguments_are_its_own(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys, os\nprint(sys.argv[1:], int(os.environ['MASTER_PORT']) > 0, flush=True)\n"
                      "sys.stdout.write('no newline'); print('an error', file=sys.stderr)\n")
    result = run("run", "-n", "1", script, "--ranks=7", "-n", "3")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[0] ['--ranks=7', '-n', '3'] True\n[0] no newline\n"
    assert "[0] an error\n" in result.stderr


def test_the_first_failing_rank_decides_and_the_others_are_ended():
    code = "import os, signal, sys; sys.exit(7) if os.environ['RANK'] == '1' else signal.pause()"
    result = run("run", "-n", 3, "--grace", "0.2", *python(code))
    assert result.returncode == 7
    assert "addend run: rank 1 ended with status 7" in result.stderr


def test_the_other_ranks_can_report_their_error():
    code = ("import os, sys; import addend, numpy; addend.init(); addend.push_pull(numpy.ones(1), 'a'); "
            "os._exit(9) if os.environ['RANK'] == '0' else addend.push_pull(numpy.ones(1), 'b')")
    result = run("run", "-n", 2, *python(code))
    assert result.returncode == 9
    assert "PeerLostError" in result.stderr


def test_the_status_of_a_killed_rank_is_that_of_a_shell():
    result = run("run", *python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert result.returncode == 128 + signal.SIGKILL


@pytest.fixture
def waiting(tmp_path):
    """A run whose ranks and their children wait for ever; gives (Process, a word in all their environments)."""
    word = "only-here-%s" % uuid.uuid4()
    # The shell stays, so that the sleeping process is a grandchild.
    command = ["sh", "-c", 'touch "$1.$RANK"; sleep 100000; true', "sh", tmp_path / "began"]
    process = Process(
        "run", [sys.executable, "-m", "addend", "run", "-n", 2, "--job", word, *command],
        tmp_path / "log", environment(TEST_WORD=word))
    try:
        eventually(lambda: all((tmp_path / f"began.{i}").exists() for i in range(2)), DEADLINE_S, "two ranks")
        # The command, its guard, two services, two shells, two sleeps.
        eventually(lambda: len(running_with(word)) == 8, DEADLINE_S, "eight processes")
        yield process, word
    finally:
        process.kill()
        for left in running_with(word):
            os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(waiting, number):
    process, word = waiting
    process.signal(number)
    assert process.wait(DEADLINE_S) == 128 + number
    assert running_with(word) == []


def test_a_killed_command_leaves_nothing(waiting):
    process, word = waiting
    process.signal(signal.SIGKILL)
    process.wait(DEADLINE_S)
    eventually(lambda: running_with(word) == [], DEADLINE_S, "an end of all processes")


@pytest.mark.parametrize("arguments,reason", [
    ([], "there is no command"),
    (["walk"], "'walk' is no command"),
    (["run"], "there is no command to run"),
    (["run", "-n", "0", "true"], "'0' is not a number of at least 1"),
    (["run", "--nope", "true"], "--nope"),
    (["run", "--servers", "many", "true"], "'many' is not a number of at least 0"),
])
def test_bad_usage_is_one_sentence(arguments, reason):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (64, "")
    assert reason in result.stderr and result.stderr.count("\n") == 1


def test_errors_of_the_services_are_reported():
    result = run("run", "--partition-bytes=x", "true")
    assert result.returncode == 64
    assert "the agent of node 0 did not start" in result.stderr and "'x' is not a size" in result.stderr


def test_a_command_that_does_not_exist():
    result = run("run", "-n", 2, "--", "/no/such/program")
    assert result.returncode == 127
    assert result.stderr == "addend run: /no/such/program cannot be started: No such file or directory\n"


def test_missing_binaries_are_named(tmp_path):
    result = run("run", "true", ADDEND_BIN_DIR=str(tmp_path))
    assert result.returncode == 64
    assert f"are not in {tmp_path}" in result.stderr and "scripts/build" in result.stderr


def test_help_and_version():
    assert "addend run" in run("--help").stdout
    assert "--nproc-per-node" in run("run", "--help").stdout
    import addend

    assert run("--version").stdout == f"addend {addend.__version__}\n"


OUTSIDER = SUM + """
import json, os, subprocess
folder = os.path.dirname(os.environ["ADDEND_SOCKET"])
port = json.load(open(os.path.join(folder, "scheduler.ports")))["grpc"]
agent = [os.path.join(os.environ["ADDEND_BIN_DIR"], "addend-agent"), "--insecure", "--scheduler=127.0.0.1:%d" % port, "--job=run",
         "--node-rank=0", "--num-nodes=1", "--local-size=1", "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0",
         "--http=127.0.0.1:0", "--health-listen=off", "--socket=" + os.path.join(folder, "outsider.sock")]
tried = subprocess.run(agent, capture_output=True, text=True, timeout=60)
print(tried.returncode, tried.stderr.strip().splitlines()[-1])
""" + LEAVE


def test_who_does_not_know_the_secret_cannot_join():
    result = run("run", *python(OUTSIDER))
    assert result.returncode == 0, result.stderr
    (said,) = lines_of(result)[0]
    status, _, why = said.partition(" ")
    assert int(status) != 0 and "secret" in why, said


def test_a_folder_that_no_job_holds_is_made_anew(tmp_path):
    """A guardian that was killed has left it; with a holder of its lock it stays."""
    folder = tmp_path / "former"
    folder.mkdir()
    (folder / "ranks.lock").touch()
    (folder / "agent0.sock").touch()
    _autostart.hold(str(folder))
    assert not _autostart._remove_left_over(str(folder))
    _autostart.release(str(folder))
    _autostart._make(str(folder))
    assert folder.is_dir() and not list(folder.iterdir())


TIMELINE = """
import json, os, addend.torch as hvd, torch
hvd.init()
hvd.start_timeline(os.environ["TIMELINE"])
for _ in range(3):
    hvd.allreduce(torch.ones(1000), name="gradient")
hvd.barrier()
hvd.stop_timeline()
if hvd.rank() == 0:
    with open(os.environ["TIMELINE"]) as file:
        print("named", "gradient" in file.read())
hvd.shutdown()
"""


def test_a_timeline_is_what_addendctl_trace_sees(tmp_path):
    pytest.importorskip("torch")
    result = run("run", "-n", 2, *python(TIMELINE), TIMELINE=str(tmp_path / "timeline.json"))
    assert result.returncode == 0 and "named True" in result.stdout, result.stdout + result.stderr


def test_horovodruns_options():
    result = run("run", "-np", 4, "--nodes", 2, *python("import os; print(os.environ['HOROVOD_RANK'], os.environ['HOROVOD_LOCAL_SIZE'])"))
    assert sorted(lines_of(result)) == [0, 1, 2, 3] and "3 2" in result.stdout
    for options, sentence in ((("-H", "a:2,b:2"), "`srun addend run`, or torchrun"), (("-np", 3, "--nodes", 2), "a multiple of --nodes")):
        refused = run("run", *options, "--", "true")
        assert refused.returncode == 64 and sentence in refused.stderr


def test_logs_are_kept_when_a_rank_fails():
    result = run("run", *python("import sys; sys.exit(3)"))
    assert result.returncode == 3
    folder = pathlib.Path(re.search(r"the services' logs are in (\S+)", result.stderr)[1])
    assert "scheduler.log" in os.listdir(folder)
    shutil.rmtree(folder)
