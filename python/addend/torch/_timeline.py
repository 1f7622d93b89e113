"""start_timeline and stop_timeline, by addendctl trace."""

from __future__ import annotations

import os
import subprocess
import threading

from .. import rank
from .._errors import Error
from .._services import find_binary

_ROUNDS = 1000  # the most that the services keep
_LIMIT_S = 120

_lock = threading.Lock()
_path: str | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """The timeline of the rounds until stop_timeline() goes to a file, for Perfetto or chrome://tracing.

    Addend's services record all the time; stop_timeline() collects what they have: `addendctl trace`.
    That needs the scheduler's address, in ADDEND_SCHEDULER, where `addend run` puts it. `mark_cycles`
    is ignored: there are no cycles.
    """
    del mark_cycles
    global _path
    if not os.environ.get("ADDEND_SCHEDULER"):
        raise Error(
            "start_timeline needs the scheduler's address in ADDEND_SCHEDULER; or use "
            "`addendctl trace --scheduler=HOST:PORT --job=JOB > trace.json`, at any time"
        )
    with _lock:
        if _path is not None:
            raise ValueError("a timeline was started already, for %s" % _path)
        _path = os.fspath(file_path)


def stop_timeline() -> None:
    """Writes the timeline, on rank 0; does nothing without start_timeline()."""
    global _path
    with _lock:
        path, _path = _path, None
    if path is None or rank() != 0:
        return
    command = [find_binary("addendctl"), "trace", "--job=" + os.environ.get("ADDEND_JOB", "default"), "--rounds=%d" % _ROUNDS]
    with open(path, "wb") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise Error("addendctl trace: " + done.stderr.decode("utf-8", "replace").strip())
