"""Ports for programs that need to know their port before they start."""
import socket

_kept = []


def free_port():
    """A port of 127.0.0.1 that the kernel gives to no process that asks for any port, until the tests end.

    The port stays bound, but no process listens: a program that sets SO_REUSEADDR, as every server does, can listen on it.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    return kept.getsockname()[1]
