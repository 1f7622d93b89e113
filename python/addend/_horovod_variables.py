"""Horovod's environment variables that have a counterpart here: for `addend run` in place of horovodrun."""

from __future__ import annotations

from typing import MutableMapping

_SECONDS = {
    # Horovod's: Addend's flag
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "ADDEND_STALL_TIMEOUT",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "ADDEND_CONNECT_TIMEOUT",
    "HOROVOD_START_TIMEOUT": "ADDEND_CONNECT_TIMEOUT",
}
_LEVELS = {"trace": "trace", "debug": "debug", "info": "info", "warning": "warn", "error": "error", "fatal": "error"}


def translate(environment: MutableMapping[str, str]) -> None:
    """Sets Addend's variables from Horovod's, where they are not set."""
    for theirs, ours in _SECONDS.items():
        text = environment.get(theirs, "")
        if text.isdecimal() and int(text) > 0:  # 0 is never, in Horovod
            environment.setdefault(ours, text + "s")
    level = _LEVELS.get(environment.get("HOROVOD_LOG_LEVEL", "").lower())
    if level is not None:
        environment.setdefault("ADDEND_LOG_LEVEL", level)
