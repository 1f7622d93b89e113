"""Errors of libaddend.so as Python exceptions."""

from __future__ import annotations

OK = 0
TIMEOUT = 1
INVALID = 64
MISMATCH = 65
VERSION = 66
INTERNAL = 70
STATE = 71
RESOURCES = 72
PEER_LOST = 75
UNREACHABLE = 76
PERMISSION = 77
STALLED = 78


class Error(RuntimeError):
    """A request that Addend refused or failed to carry out. `code`: addend_code of lib/client/addend.h."""

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[Error], tuple[str, int]]:
        return type(self), (str(self), self.code)


class PeerLostError(Error):
    """A rank, an agent or a server died; the job's generation is over."""


class StalledError(Error):
    """A rank did not take part within the stall timeout."""


class MismatchError(Error):
    """Ranks disagree about a tensor, a setting or the protocol."""


class WaitTimeoutError(Error, TimeoutError):
    """The caller's own time limit has passed; the operation continues."""


_CLASSES = {
    TIMEOUT: WaitTimeoutError,
    MISMATCH: MismatchError,
    PEER_LOST: PeerLostError,
    STALLED: StalledError,
}


def make_error(code: int, message: str) -> Error:
    return _CLASSES.get(code, Error)(message, code)
