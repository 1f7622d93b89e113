"""`addend run` and `addend serve` as tasks of a Slurm job: srun starts them on every node.

The processes of a job meet in a folder that all its nodes see (the job's working directory, as a rule).
The first node's task leaves the scheduler's address and the secrets there, and removes them at the end.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from typing import Any, NamedTuple

from ._processes import Child, end_all
from ._services import Layout, Member, ServicesError, agent_flags, find_binaries, make_secret

_USAGE = 64
_UNREACHABLE = 76
_MEETING = "meeting.json"
_MEET_S = 300  # the tasks of a job may start at different times
_LEAVE_S = 60  # for the other nodes to end, once this node's ranks have ended
_ASKED_S = 3  # the same, within the time that Slurm leaves after its signal
_SERVER_DRAINS_S = 30  # longer than addend-summation's own limit
# Slurm sends it to every process of a job, and services are needed until the ranks have ended.
_FROM_SLURM = (signal.SIGTERM,)


class Step(NamedTuple):
    """This task's place in its job step, from Slurm's variables."""

    job: str  # Slurm's number, with the number of times that it was requeued
    number: str  # of the step in the job
    node: int
    nodes: int
    task: int  # on this node
    tasks: int
    name: str  # Slurm's name of this node

    @classmethod
    def here(cls) -> Step | None:
        """None: this process was not started by srun."""
        if "SLURM_STEP_ID" not in os.environ or "SLURM_PROCID" not in os.environ:
            return None
        counts = _counts(os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        if len(set(counts)) != 1:
            raise ServicesError(
                "the nodes of this step have %s tasks: all need the same number (srun --ntasks-per-node)"
                % ", ".join(map(str, counts)),
                _USAGE,
            )
        nodes = int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
        components = [int(value) for name, value in os.environ.items() if name.startswith("SLURM_JOB_NUM_NODES_HET_GROUP_")]
        if components and nodes > max(components):
            raise ServicesError(
                "this step has nodes of several components of a heterogeneous job: start addend run and addend "
                "serve by an srun each (examples/slurm/heterogeneous.sbatch)",
                _USAGE,
            )
        # The components of a heterogeneous job have numbers of their own, and know the first's.
        number = os.environ.get("SLURM_JOB_ID_HET_GROUP_0") or os.environ["SLURM_JOB_ID"]
        return cls(
            job="%s-%s" % (number, os.environ.get("SLURM_RESTART_COUNT", "0")),
            number=os.environ["SLURM_STEP_ID"],
            node=int(os.environ["SLURM_NODEID"]),
            nodes=nodes,
            task=int(os.environ["SLURM_LOCALID"]),
            tasks=counts[0],
            name=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        )

    def folder(self, given: str | None) -> str:
        """Where the job's processes meet."""
        parent = given or os.environ.get("ADDEND_RENDEZVOUS") or os.environ.get("SLURM_SUBMIT_DIR") or os.getcwd()
        return os.path.join(parent, ".addend-" + self.job)


def _counts(text: str) -> list[int]:
    """SLURM_STEP_TASKS_PER_NODE: "2(x3),1" are 2, 2, 2 and 1 tasks."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ServicesError("SLURM_STEP_TASKS_PER_NODE is %r, which this release does not understand" % text)
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _address(name: str) -> str:
    """The address at which Slurm reaches a node."""
    try:
        said = subprocess.run(["scontrol", "-o", "show", "node", name], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    match = re.search(r"\bNodeAddr=(\S+)", said)
    return match[1] if match else name


def _make_private(folder: str, instead: str) -> None:
    try:
        os.makedirs(folder, mode=0o700)
    except OSError as error:
        raise ServicesError("%s cannot be made (%s): %s" % (folder, error.strerror, instead)) from None


class Meeting:
    """What the processes of the job know of each other: a file in the folder, written once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._path = os.path.join(folder, _MEETING)

    def secret(self, owner: str) -> str:
        return os.path.join(self.folder, owner + ".secret")

    def prepare(self) -> None:
        """Makes the folder and the secrets, for this user alone, and removes what was left of the job by a
        step that was killed.
        """
        for left in glob.glob(glob.escape(self.folder.rpartition("-")[0]) + "-*"):
            shutil.rmtree(left, ignore_errors=True)
        _make_private(self.folder, "--rendezvous names a folder where the job may make it")
        for owner in ("servers", "job"):
            make_secret(self.secret(owner))

    def announce(self, **facts: Any) -> None:
        temporary = self._path + ".new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(facts, file)
        os.replace(temporary, self._path)

    def facts(self) -> dict[str, Any] | None:
        """None: the first node's task has not announced them yet, or has ended."""
        try:
            if os.stat(self.folder).st_uid != os.getuid():
                raise ServicesError("%s belongs to another user: --rendezvous names another folder" % self.folder)
            with open(self._path, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def await_facts(self, whom: str, step: str | None = None) -> dict[str, Any]:
        """`step`: only what a task of this step has announced counts."""
        deadline = time.monotonic() + _MEET_S
        while True:
            facts = self.facts()
            if facts is not None and step in (None, facts["step"]):
                return facts
            if time.monotonic() > deadline:
                raise ServicesError(
                    "%s has announced no scheduler in %s within %d s: all nodes of the job must see this folder "
                    "(--rendezvous names another)" % (whom, self.folder, _MEET_S),
                    _UNREACHABLE,
                )
            time.sleep(0.1)

    def leave(self, node: int) -> None:
        try:
            with open(os.path.join(self.folder, "left.%d" % node), "w", encoding="ascii"):
                pass
        except OSError:
            pass  # the first node has ended already

    def await_all(self, nodes: int, limit_s: float) -> None:
        """Waits until all nodes have left, or for the limit: a node that was lost does not leave."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if all(os.path.exists(os.path.join(self.folder, "left.%d" % node)) for node in range(nodes)):
                return
            time.sleep(0.1)

    def end(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class NodeServices:
    """The services on this node: an agent, started by the node's first task; on the first node also
    the scheduler. In place of Services, for ranks that a Slurm step has started.
    """

    def __init__(self, step: Step, options: Any, folder: str, logs: str) -> None:
        self.children: list[Child] = []
        self.scheduler = ""
        self._step = step
        self._options = options
        self._meeting = Meeting(step.folder(options.rendezvous))
        self._logs = logs
        # The same for all tasks of the node; short, as it has a Unix socket's path.
        self._shared = "/tmp/addend-%d-%s.%s-%s" % (os.getuid(), step.job, step.number, step.name)
        self._private = folder
        self._lock: int | None = None
        self.facts: dict[str, Any] = {}

    def socket(self, node: int) -> str:
        del node
        return os.path.join(self._shared, "agent.sock")

    def start(self) -> None:
        step = self._step
        _, _, agent = find_binaries()
        if step.task == 0:
            shutil.rmtree(self._shared, ignore_errors=True)
            _make_private(self._shared, "it is there, or /tmp of %s cannot be written" % step.name)
            os.makedirs(self._logs, exist_ok=True)
        if step.node == 0 and step.task == 0:
            self._start_scheduler()
        self.facts = self._meeting.await_facts("the first node of the step", step.number)
        self.scheduler = self.facts["scheduler"]
        if step.task == 0:
            member = Member(self._private, self._logs, _FROM_SLURM)
            layout = Layout(
                self._options.job, step.nodes, step.tasks * self._options.ranks, partition_bytes=self._options.partition_bytes
            )
            child = member.start(agent, "agent of node %d" % step.node, [
                "--scheduler=" + self.scheduler, *member.protection(), "--listen=:0", "--data-listen=:0",
                "--job-secret-file=" + self._meeting.secret("job"), *agent_flags(layout, step.node, self.socket(step.node)),
            ])
            self.children.append(child)
            member.wait_for(child)
        self._hold()

    def _start_scheduler(self) -> None:
        scheduler, _, _ = find_binaries()
        self._meeting.prepare()
        member = Member(self._private, self._logs, _FROM_SLURM)
        child = member.start(scheduler, "scheduler", [
            *member.protection(), "--listen=:0", "--store=memory", "--server-secret-file=" + self._meeting.secret("servers"),
        ])
        self.children.append(child)
        port = member.wait_for(child)["grpc"]
        host = _address(self._step.name)
        with socket.socket() as free:
            free.bind(("", 0))
            master = free.getsockname()[1]
        self._meeting.announce(
            step=self._step.number, scheduler="%s:%d" % (host, port), master_addr=host, master_port=master
        )

    def _hold(self) -> None:
        """The node's first task keeps the agent as long as any task of the node has ranks."""
        path = os.path.join(self._shared, "ranks.lock")
        deadline = time.monotonic() + _MEET_S
        while self._lock is None:
            try:
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the first task has not made the folder yet
                if time.monotonic() > deadline:
                    raise ServicesError("the first task of %s has not started within %d s" % (self._step.name, _MEET_S), _UNREACHABLE) from None
                time.sleep(0.05)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def leave(self, relay: Any, asked: bool) -> None:
        """After this task's ranks: services end when nobody needs them any more. `asked`: by a signal,
        which may have ended other nodes before they could say so.
        """
        step = self._step
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        if step.task != 0:
            return
        if self._lock is not None:  # else start() has failed, or was interrupted
            self._await_tasks(relay)
            # Agents leave before the scheduler does.
            end_all([child for child in self.children if child.name != "scheduler"], relay, 5, signal.SIGINT)
            self._meeting.leave(step.node)
            if step.node == 0:
                self._meeting.await_all(step.nodes, _ASKED_S if asked else _LEAVE_S)
        if step.node == 0:
            self._meeting.end()
        shutil.rmtree(self._shared, ignore_errors=True)

    def _await_tasks(self, relay: Any) -> None:
        """Waits for the other tasks of this node, for a minute."""
        assert self._lock is not None
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                relay.pump(0.05)


def serve(rendezvous: str | None, flags: list[str], log: Any) -> int:
    """`addend serve`: a summation server on this node, for the job's `addend run`, as long as that runs."""
    step = Step.here()
    if step is None:
        raise ServicesError("addend serve is a task of srun, beside `addend run`; elsewhere start addend-summation", _USAGE)
    meeting = Meeting(step.folder(rendezvous))
    facts = meeting.await_facts("addend run")
    _, summation, _ = find_binaries()
    child = Child("summation server", [
        summation, "--scheduler=" + facts["scheduler"], *Member.protection(), "--listen=:0", "--data-listen=:0", "--http=127.0.0.1:0",
        "--health-listen=off", "--server-secret-file=" + meeting.secret("servers"), *flags,
    ], stdout=None, stderr=None, ignores=_FROM_SLURM)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    while child.poll() is None:
        if asked or meeting.facts() != facts:
            if not asked:
                log("the training has ended")
            child.signal(signal.SIGINT)  # it hands over its partitions
            deadline = time.monotonic() + _SERVER_DRAINS_S
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            child.signal(signal.SIGKILL)
        time.sleep(0.2)
    status = child.poll()
    if status and meeting.facts() != facts:
        return 0  # its scheduler has ended with the training
    return status if status is not None and status >= 0 else 128
