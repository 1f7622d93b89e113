"""Starts a scheduler and an agent on this machine for a script that has none, and ends them after it.

Only where nobody else can be meant to do so: there is no agent, none is named, and all ranks of the
job are on this machine. ADDEND_AUTOSTART=0 forbids it.

The services belong to a guardian, a process of its own session, which ends when all ranks of this
machine have: each rank holds a shared lock on a file, and the guardian waits for the exclusive one.
The kernel releases a lock however its process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from . import _errors
from ._errors import make_error

AGENT_FOLDER = "/run/addend"  # of the agents' default socket
_LOCK = "ranks.lock"
_SOCKET = "agent0.sock"  # as Services names it
_READY = b"ready"
_FORMER_S = 10  # for a guardian of the same name to end
_START_S = 50  # for local rank 0 to begin

_held: dict[str, int] = {}  # folder -> the descriptor whose lock this process holds


def _number(name: str, default: int | None) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


def wanted() -> bool:
    """True if no agent is there, named or expected, and the user does not forbid to start one."""
    named = any(os.environ.get(name) for name in ("ADDEND_SOCKET", "ADDEND_JOB"))
    return not named and os.environ.get("ADDEND_AUTOSTART") != "0" and not os.path.isdir(AGENT_FOLDER)


def socket_of_launcher(size: int | None, local_rank: int | None, local_size: int | None) -> str | None:
    """The socket of an agent for the ranks of this machine, as the launcher's variables describe them.

    Local rank 0 starts it. None: an agent is expected, or starting one is not for this process.
    """
    size = _number("WORLD_SIZE", 1) if size is None else size
    local_size = _number("LOCAL_WORLD_SIZE", 1) if local_size is None else local_size
    local_rank = _number("LOCAL_RANK", 0) if local_rank is None else local_rank
    if not wanted() or size is None or size != local_size or size < 1:
        return None
    if size == 1:
        return start(1)
    if not os.environ.get("MASTER_PORT"):
        return None
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    # Ranks of one launcher have these in common, and no other living launcher of this machine has.
    key = "\0".join(os.environ.get(name, "") for name in names)
    folder = "/tmp/addend-%d-%s" % (os.getuid(), hashlib.sha256(key.encode()).hexdigest()[:16])
    if local_rank == 0:
        return start(size, folder)
    _await(folder)
    return os.path.join(folder, _SOCKET)


def start(local_size: int, folder: str | None = None) -> str:
    """Starts the services for `local_size` ranks of this machine; returns the agent's socket.

    `folder`: where it must be, for ranks that are not told the result. A second call of this process
    for the same folder, or without one, returns the same socket.
    """
    if folder in _held or (folder is None and _held):
        return os.path.join(folder or next(iter(_held)), _SOCKET)
    if folder is None:
        # Not under TMPDIR: the path of a Unix socket has at most 107 bytes.
        folder = tempfile.mkdtemp(prefix="addend-", dir="/tmp")
    else:
        _make(folder)
    hold(folder)
    said = subprocess.Popen(
        [sys.executable, "-m", "addend._autostart", folder, str(local_size)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True, env=dict(os.environ, PYTHONPATH=_import_path()),
    ).stdout
    assert said is not None
    with said:
        answer = said.read()  # ends with the guardian's preparations
    if answer.strip() != _READY:
        release(folder)
        raise make_error(
            _errors.UNREACHABLE,
            "there is no agent on this machine, and starting one has failed: %s"
            % (answer.decode("utf-8", "replace").strip() or "its guardian ended"),
        )
    whom = "this process alone" if local_size == 1 else "the %d ranks of this machine" % local_size
    print(
        "addend: no agent runs here: started a scheduler and an agent for %s (ADDEND_AUTOSTART=0 refuses)" % whom,
        file=sys.stderr, flush=True,
    )
    return os.path.join(folder, _SOCKET)


def hold(folder: str) -> None:
    """Keeps the services of the folder alive as long as this process, or until release()."""
    if folder in _held:
        return
    try:
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return  # the services have ended with local rank 0: the next call of this process says so
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _held[folder] = descriptor


def release(folder: str) -> None:
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def _make(folder: str) -> None:
    """Makes the folder, for this user alone. Waits for the end of a former job, and removes what a
    guardian that was killed has left.
    """
    deadline = time.monotonic() + _FORMER_S
    while True:
        try:
            os.mkdir(folder, 0o700)
            return
        except FileExistsError:
            _check_owner(folder)
            if _remove_left_over(folder):
                continue
            if time.monotonic() > deadline:
                raise make_error(
                    _errors.UNREACHABLE,
                    "another job on this machine has the same MASTER_ADDR and MASTER_PORT (its services run in %s); "
                    "give this job another port" % folder,
                ) from None
            time.sleep(0.05)


def _check_owner(folder: str) -> None:
    try:
        owner = os.lstat(folder).st_uid
    except FileNotFoundError:
        return
    if owner != os.getuid():
        raise make_error(
            _errors.PERMISSION, "%s belongs to another user; give this job another MASTER_PORT" % folder
        )


def _remove_left_over(folder: str) -> bool:
    """Removes the folder if no rank and no guardian holds its lock; a guardian removes it under the lock."""
    try:
        with open(os.path.join(folder, _LOCK), "rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            return True
    except (BlockingIOError, FileNotFoundError):
        return False


def _await(folder: str) -> None:
    """Waits until local rank 0 has made the folder."""
    deadline = time.monotonic() + _FORMER_S + _START_S
    while not os.path.exists(folder):
        if time.monotonic() > deadline:
            raise make_error(
                _errors.UNREACHABLE,
                "there is no agent on this machine, and local rank 0, which would start one in %s, has not called "
                "init() within %d s" % (folder, _FORMER_S + _START_S),
            )
        time.sleep(0.02)
    _check_owner(folder)


def _import_path() -> str:
    """PYTHONPATH for a guardian that imports this very package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.pathsep.join([package] + [one for one in [os.environ.get("PYTHONPATH")] if one])


# ---- the guardian ----


def _guard(folder: str, local_size: int) -> str:
    """Runs the services until no rank is left; returns why they could not be started, or nothing."""
    from ._processes import Relay, end_all
    from ._services import Layout, Services, ServicesError

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    services = Services(Layout("local", ranks=local_size), folder, folder)
    with open(os.path.join(folder, _LOCK), "rb+") as lock:
        try:
            services.start()
            print(_READY.decode(), flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            fcntl.flock(lock, fcntl.LOCK_EX)
        except (ServicesError, OSError) as error:  # a full disk is an OSError
            return str(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            end_all(services.children, Relay(), 0)
    return ""


if __name__ == "__main__":
    sys.exit(print(_guard(sys.argv[1], int(sys.argv[2]))))
