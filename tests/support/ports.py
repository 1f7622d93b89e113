"""Ports for programs that need to know their port before they start."""
import errno
import socket

_kept = []


def free_port(*addresses):
    """A port of each of `addresses` (default 127.0.0.1) that the kernel gives to no process that asks for any port, until the tests end.

    The port stays bound, but no process listens: a program that sets SO_REUSEADDR, as every server does, can listen on it.
    """
    first, *others = addresses or ["127.0.0.1"]
    while True:
        kept = [_bound(first, 0)]
        port = kept[0].getsockname()[1]
        try:
            kept += [_bound(address, port) for address in others]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue  # some process has this port of another address
        _kept.extend(kept)
        return port


def _bound(address, port):
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((address, port))
    return bound


def behind(address):
    """Flags of a service whose data path others reach through a proxy: the proxy listens on `address`, on the port of the service."""
    return [f"--data-listen=127.0.0.1:{free_port('127.0.0.1', address)}", f"--advertise={address}"]
