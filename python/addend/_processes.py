"""Child processes that leave nothing behind, and a relay for their output."""

import ctypes
import json
import os
import re
import selectors
import signal
import subprocess
import time

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_LONGEST_LINE = 1 << 16  # bytes; a longer line is printed in pieces
_LINE_END = re.compile(rb"\r\n|\n|\r(?!$)")  # a \r at the end may be half of \r\n


def die_with_parent(number, parent):
    """For a child of the process `parent`: the kernel signals the child when the parent's thread ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent has already ended
        os.kill(os.getpid(), number)


def _prepare(parent, ignores):
    for number in ignores:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL, parent)


class Child:
    """A program in its own session: Ctrl-C reaches only its parent, and its process group can be
    killed.

    Without `stdout` and `stderr` both are pipes. It ignores the signals `ignores`. All children must be started by the main thread.
    """

    def __init__(self, name, command, env=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, ignores=()):
        self.name = name
        # The exit status; negative: the number of the signal that ended the child.
        self.status = None
        self.port_file = None
        self.log = None
        parent = os.getpid()
        self._popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env,
            start_new_session=True, preexec_fn=lambda: _prepare(parent, ignores),
        )
        self.stdout, self.stderr = self._popen.stdout, self._popen.stderr

    def poll(self):
        """The exit status, or None. Kills the processes that the program started when the program has ended."""
        if self.status is None:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            # Until the child is reaped, its process id, and so its group's id, cannot be reused.
            if os.waitid(os.P_PID, self._popen.pid, flags) is not None:
                self.signal(signal.SIGKILL)
                self.status = self._popen.wait()
        return self.status

    def signal(self, number):
        """Sends a signal to the program and all processes in its group."""
        if self.status is None:
            try:
                os.killpg(self._popen.pid, number)
            except ProcessLookupError:
                pass

    def ports(self):
        """The content of the port file, or None until it is written."""
        try:
            with open(self.port_file, encoding="utf-8") as file:
                return json.load(file)
        except (FileNotFoundError, ValueError):
            return None

    def last_line(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        return lines[-1] if lines else "it says nothing"


class Relay:
    """Copies the lines of many pipes, each behind a prefix."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()

    def add(self, pipe, prefix, out):
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, _Lines(prefix, out))

    def pump(self, timeout):
        """Copies available output, waiting up to `timeout` seconds for it; returns whether there was any."""
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        ready = self._selector.select(timeout)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            if data:
                key.data.take(data)
            else:
                self._selector.unregister(key.fileobj)
                key.data.finish()
        return bool(ready)

    def drain(self):
        """Copies the output that is left, without waiting for processes that still hold the pipes."""
        while self._selector.get_map() and self.pump(0):
            pass
        for key in list(self._selector.get_map().values()):
            key.data.finish()


class _Lines:
    def __init__(self, prefix, out):
        self._prefix = prefix
        self._out = out
        self._rest = b""

    def take(self, data):
        *lines, self._rest = _LINE_END.split(self._rest + data)
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._write(lines)

    def finish(self):
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        self._write([rest] if rest else [])

    def _write(self, lines):
        if lines and self._out is not None:
            try:
                self._out.write(b"".join(self._prefix + line + b"\n" for line in lines))
                self._out.flush()
            except BrokenPipeError:
                self._out = None  # no reader is left; the program must not block on that


def end_all(children, relay, killed_after_s, asked_by=signal.SIGTERM):
    """Asks the children to end, and kills the remaining children after `killed_after_s` seconds."""
    for child in children:
        child.signal(asked_by)
    deadline = time.monotonic() + killed_after_s
    while any([child.poll() is None for child in children]) and time.monotonic() < deadline:
        relay.pump(0.02)
    for child in children:
        child.signal(signal.SIGKILL)
    while any([child.poll() is None for child in children]):
        time.sleep(0.01)
