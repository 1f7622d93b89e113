"""Child processes of the tests: each leads a process group, dies with the test, and keeps its output in a file."""
import contextlib
import os
import pathlib
import signal
import subprocess
import time

# Not preexec_fn: with it Python forks, and runs code in a copy of a process that may have threads.
DIES_WITH_THE_TEST = ["/usr/bin/setpriv", "--pdeathsig=KILL", "--"]


def lowest_priority(pid):
    """Gives the process `pid`, which leads its session, and all of its threads the lowest priority."""
    os.setpriority(os.PRIO_PGRP, pid, 19)
    # If the kernel groups processes by session, that value counts only within the session, which has its own value.
    with contextlib.suppress(FileNotFoundError):
        pathlib.Path(f"/proc/{pid}/autogroup").write_text("19")


class Process:
    """A running program. `log` holds its standard error (and output, unless `stdout` names another file)."""

    def __init__(self, name, command, log, env=None, cwd=None, stdout=None, user=None):
        self.name = name
        self.command = [str(word) for word in command]
        self.log = pathlib.Path(log)
        credentials = {"user": user, "group": user, "extra_groups": []} if user is not None else {}
        with open(self.log, "ab") as err, open(stdout or self.log, "ab") as out:
            self._popen = subprocess.Popen(
                [*DIES_WITH_THE_TEST, *self.command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd,
                start_new_session=True, **credentials)
        self.pid = self._popen.pid

    @property
    def returncode(self):
        """The exit status; None while the program runs, negative if a signal ended it."""
        return self._popen.poll()

    def wait(self, timeout):
        """The exit status; subprocess.TimeoutExpired if the program runs for longer."""
        return self._popen.wait(timeout)

    def signal(self, number):
        """Returns after SIGSTOP when all threads stand still: on a busy machine some run on until the kernel has told the first."""
        self._popen.send_signal(number)
        if number == signal.SIGSTOP:
            eventually(self._stands_still, 30, f"the end of {self.name}'s last time slice", 0.001)

    def _stands_still(self):
        states = []
        for stat in pathlib.Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                states.append(stat.read_text().rpartition(")")[2].split()[0])
        return all(state in "TtZX" for state in states)

    def kill(self):
        """Kills the process and all processes in its group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._popen.wait()

    def stop(self, timeout=10):
        """Asks the program to end; kills it, and fails, if it does not end in time. Returns the exit status."""
        self.signal(signal.SIGTERM)
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {timeout} s of SIGTERM") from None
        return self.returncode

    def text(self):
        return self.log.read_text(errors="replace")

    def tail(self, lines=25):
        return "\n".join(self.text().splitlines()[-lines:])


def eventually(condition, timeout=10, what="the condition", interval=0.02):
    """Waits until `condition()` is true and returns its value; fails with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {timeout} s")
        time.sleep(interval)
