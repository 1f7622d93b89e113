"""Ports for programs that have to be told one before they start."""
import socket

_kept = []


def free_port():
    """Of 127.0.0.1; until the tests end the kernel gives it to nobody who asks for any port.

    It stays bound, but nobody listens: a program that sets SO_REUSEADDR, as every server does, can listen on it.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    return kept.getsockname()[1]
