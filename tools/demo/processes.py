"""The demo's child processes: they end with the demo, even if it is killed, and keep their output."""

import ctypes
import json
import os
import signal
import subprocess
import time

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_START_LIMIT_S = 30
_END_LIMIT_S = 5


class DemoError(Exception):
    """The reason why the demo cannot continue, as a readable sentence."""


def _die_with_parent():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A child process in its own session, so that Ctrl-C reaches only the demo."""

    def __init__(self, name, command, folder, env=None):
        self.name = name
        self.log = folder / (name.replace(" ", "-") + ".log")
        self.killed = False  # on purpose, by the demo
        with open(self.log, "wb") as log:
            self._popen = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def status(self):
        """The exit status, None while the process runs."""
        return self._popen.poll()

    def ask_to_end(self):
        if self.status is None:
            self._popen.terminate()

    def kill_on_purpose(self):
        self.killed = True
        self.kill()

    def kill(self):
        """Kills the process and all processes in its group."""
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._popen.wait()

    def tail(self, lines=15):
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join("  | " + line for line in text[-lines:]) or "  | (no output)"


class Processes:
    """All children of a run. Leaving the context ends every child."""

    def __init__(self, folder):
        self.folder = folder
        self.all = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The scheduler, which started first, ends last: the servers ask it for permission to leave.
        for group in (self.all[1:], self.all[:1]):
            for process in reversed(group):
                process.ask_to_end()
            deadline = time.monotonic() + _END_LIMIT_S
            while time.monotonic() < deadline and any(p.status is None for p in group):
                time.sleep(0.02)
        for process in self.all:
            process.kill()

    def start(self, name, command, env=None):
        process = Process(name, command, self.folder, env)
        self.all.append(process)
        return process

    def start_service(self, name, command):
        """Starts a service on ports that the kernel chooses; returns (process, its port file)."""
        port_file = self.folder / (name.replace(" ", "-") + ".ports")
        flags = ["--http=127.0.0.1:0", "--health-listen=off", "--log-level=info"]
        process = self.start(name, [*command, *flags, f"--port-file={port_file}"])
        return process, port_file

    def await_ports(self, process, port_file):
        deadline = time.monotonic() + _START_LIMIT_S
        while not port_file.exists():
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{process.name} does not serve after {_START_LIMIT_S} s; its last lines:\n"
                    + process.tail()
                )
            time.sleep(0.02)
        return json.loads(port_file.read_text())

    def check(self):
        """Raises DemoError if a child has ended with an error and was not killed by the demo."""
        for process in self.all:
            if process.status not in (None, 0) and not process.killed:
                raise DemoError(
                    f"{process.name} ended with status {process.status}; its last lines:\n"
                    + process.tail()
                )
