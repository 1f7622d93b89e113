"""Slurm on this machine: a controller, and nodes that are daemons with host names of their own."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from tests.support.ports import free_port
from tests.support.processes import eventually

NODES = ("n1", "n2", "n3")
CONFIGURATION = """
ClusterName=emulated
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdLogFile={folder}/%n/slurmd.log
SlurmdSpoolDir={folder}/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=30
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=60
"""


def unavailable():
    """Why Slurm cannot run here; empty if it can."""
    for program in ("slurmctld", "slurmd", "sbatch", "munged"):
        if shutil.which(program, path="/usr/sbin:/usr/bin") is None:
            return f"{program} is not installed"
    if os.geteuid() != 0:
        return "only root runs the daemons of Slurm's nodes"
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode != 0:
        return "a process on this machine may not have a host name of its own (unshare --uts)"
    return ""


class Slurm:
    """Runs jobs in `folder`, which all nodes see. `environment`: of the jobs."""

    def __init__(self, folder, environment):
        if unavailable():
            pytest.skip(unavailable())
        self.folder = pathlib.Path(folder)
        self._private = pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path is short
        self.environment = {**os.environ, **environment, "SLURM_CONF": str(self._private / "slurm.conf")}
        self._daemons = []

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            for log in self._private.rglob("*.log"):
                print(f"---- {log}\n{log.read_text(errors='replace')[-2000:]}")
        self._end()

    def _start(self):
        for name in ("munge", "state", *NODES):
            (self._private / name).mkdir()
        (self._private / "munge").chmod(0o711)
        key = self._private / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        nodes = "".join(f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 State=UNKNOWN\n" for name in NODES)
        (self._private / "slurm.conf").write_text(CONFIGURATION.format(folder=self._private, controller=free_port()) + nodes)
        munge = self._private / "munge"
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--seed-file={munge}/seed")
        eventually(lambda: (munge / "socket").exists(), 20, "munged's socket")
        self._daemon("slurmctld", "-D", "-i")
        for name in NODES:
            self._daemon("unshare", "--uts", "sh", "-c", f"hostname {name}; exec slurmd -D")
        eventually(lambda: self.run("sinfo", "-h", "-N", "-t", "idle", "-p", "low", "-o", "%N").split() == list(NODES), 60, "three idle nodes")

    def _daemon(self, *command):
        with open(self._private / f"daemon{len(self._daemons)}.log", "wb") as log:
            self._daemons.append(subprocess.Popen(
                command, env={**self.environment, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, stdout=log, stderr=log, start_new_session=True))

    def _end(self):
        self.run("scancel", "--user=root", "--full", check=False)
        if self._daemons:
            eventually(lambda: not self.run("squeue", "-h", check=False), 60, "the end of all jobs")
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self._private, ignore_errors=True)

    def run(self, *command, check=True):
        """The output of one of Slurm's commands."""
        done = subprocess.run([str(word) for word in command], cwd=self.folder, env=self.environment, timeout=300, text=True, capture_output=True)
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, *arguments):
        return self.run("sbatch", "--parsable", *arguments).split(";")[0]

    def state(self, job):
        return self.run("squeue", "-h", "-j", job, "-o", "%T", check=False)

    def output(self, job):
        path = self.folder / f"addend-{job}.out"
        return path.read_text() if path.exists() else ""

    def wait(self, job, limit_s=120):
        """Waits for the job's end; returns its output."""
        eventually(lambda: not self.state(job), limit_s, f"the end of job {job}")
        return self.output(job)
