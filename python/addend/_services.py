"""Addend's services on this machine: a scheduler, summation servers, an agent per emulated node."""

from __future__ import annotations

import os
import secrets
import time
from typing import NamedTuple

from ._processes import Child

BINARIES = ("addend-scheduler", "addend-summation", "addend-agent")
_USAGE = 64
_START_LIMIT_S = 60


class ServicesError(Exception):
    """The reason why the services or a command cannot run: one sentence, and the exit status."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def status_of(child):
    """The exit status as a shell reports it."""
    return child.status if child.status >= 0 else 128 - child.status


def _bin_folders():
    """ADDEND_BIN_DIR alone if it is set; else the package's, a checkout build's and PATH's folders."""
    chosen = os.environ.get("ADDEND_BIN_DIR")
    if chosen:
        return [chosen]
    package = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(os.path.dirname(package))
    return [os.path.join(package, "bin"), os.path.join(checkout, "build", "bin"), *os.get_exec_path()]


def find_binaries():
    """The paths of scheduler, summation server and agent, all from one folder."""
    folders = _bin_folders()
    for folder in folders:
        paths = [os.path.join(folder, name) for name in BINARIES]
        if all(os.access(path, os.X_OK) for path in paths):
            return paths
    where = folders[0] if len(folders) == 1 else ", ".join(folders[:2]) + " or on PATH"
    raise ServicesError(
        "%s are not in %s: run scripts/build, or set ADDEND_BIN_DIR to their folder"
        % (", ".join(BINARIES), where),
        _USAGE,
    )


def find_binary(name):
    """The path of another program of Addend's."""
    for folder in _bin_folders():
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    raise ServicesError("%s was not found: run scripts/build, or set ADDEND_BIN_DIR to its folder" % name, _USAGE)


class Layout(NamedTuple):
    """What runs: `ranks` per node; None: the agents' own default."""

    job: str
    nodes: int = 1
    ranks: int = 1
    servers: int = 0
    partition_bytes: str | None = None


def make_secret(path):
    """A new secret in a file that only this user reads."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")


def agent_flags(layout, node, socket):
    """An agent's place in the job."""
    flags = [
        "--job=" + layout.job,
        "--node-rank=%d" % node,
        "--num-nodes=%d" % layout.nodes,
        "--local-size=%d" % layout.ranks,
        "--socket=" + socket,
    ]
    if layout.partition_bytes is not None:
        flags.append("--partition-bytes=" + layout.partition_bytes)
    return flags


class Member:
    """Starts services on this machine, with logs in a folder and files of their ports in another.
    They ignore the signals `ignores`.
    """

    def __init__(self, folder, logs, ignores=()):
        self._folder = folder
        self._logs = logs
        self._ignores = ignores

    @staticmethod
    def protection():
        """The flags for a control plane without certificates, unless the environment names some."""
        return [] if os.environ.get("ADDEND_TLS_CERT") else ["--insecure"]

    def start(self, binary, name, flags):
        file = name.replace(" ", "-")
        port_file = os.path.join(self._folder, file + ".ports")
        command = [binary, *flags, "--http=127.0.0.1:0", "--health-listen=off", "--port-file=" + port_file]
        with open(os.path.join(self._logs, file + ".log"), "wb") as log:
            child = Child(name, command, stdout=log, stderr=log, ignores=self._ignores)
        child.port_file, child.log = port_file, log.name
        return child

    @staticmethod
    def wait_for(child):
        """Waits until a service is serving; returns its ports."""
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            ports = child.ports()
            if ports is not None:
                return ports
            if child.poll() is not None:
                raise ServicesError("the %s did not start: %s" % (child.name, child.last_line()), status_of(child))
            if time.monotonic() > deadline:
                raise ServicesError("the %s does not serve within %d s" % (child.name, _START_LIMIT_S))
            time.sleep(0.01)


class Services:
    """The scheduler, the summation servers and the agents of one run, on ports that the kernel chooses.

    Their sockets are in `folder`, their logs in `logs`, which is made if it is missing. Other users of
    this machine reach the ports, but know neither the job's secret nor the servers'.
    """

    def __init__(self, layout, folder, logs):
        self.children = []
        self._layout = layout
        self._folder = folder
        self.scheduler = ""  # its address, from start() on
        self._member = Member(folder, logs)
        os.makedirs(logs, exist_ok=True)

    def start(self):
        scheduler, summation, agent = find_binaries()
        for_servers = "--server-secret-file=" + self._make_secret("servers")
        for_job = "--job-secret-file=" + self._make_secret("job")
        first = self._start(scheduler, "scheduler", ["--insecure", "--listen=127.0.0.1:0", "--store=memory", for_servers])
        self.scheduler = "127.0.0.1:%d" % self._member.wait_for(first)["grpc"]
        member = ["--scheduler=" + self.scheduler, "--insecure", "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0", "--advertise=127.0.0.1"]
        started = [
            self._start(summation, "summation server %d" % i, [*member, for_servers]) for i in range(self._layout.servers)
        ]
        for node in range(self._layout.nodes):
            flags = [*member, for_job, *agent_flags(self._layout, node, self.socket(node))]
            started.append(self._start(agent, "agent of node %d" % node, flags))
        for one in started:
            self._member.wait_for(one)

    def _make_secret(self, owner):
        path = os.path.join(self._folder, owner + ".secret")
        make_secret(path)
        return path

    def socket(self, node):
        return os.path.join(self._folder, "agent%d.sock" % node)

    def _start(self, binary, name, flags):
        child = self._member.start(binary, name, flags)
        self.children.append(child)
        return child
