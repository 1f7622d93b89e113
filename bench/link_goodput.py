"""Measures TCP's payload rate over a link in both directions at once: a process on each of two hosts.

    link_goodput.py listen ADDRESS     prints its port, then the bytes per second that it received
    link_goodput.py connect ADDRESS:PORT
"""
import socket
import sys
import threading
import time

WARM_UP, MEASURED = 1.5, 3.0  # seconds
BLOCK = bytes(1 << 18)


def send(connection, end):
    try:
        while time.monotonic() < end:
            connection.sendall(BLOCK)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other end finished first; only its received bytes count


def receive(connection, begin, end):
    """The received bytes per second between `begin` and `end`. Reads until the other end has sent all: bytes that are left unread would reset it."""
    buffer, received, first, last = bytearray(1 << 18), 0, None, None
    while now := time.monotonic():
        size = connection.recv_into(buffer)
        if size == 0:
            break
        if begin <= now < end:
            first, last = first or now, now
            received += size if now != first else 0
    return received / (last - first)


def main():
    role, address = sys.argv[1:]
    if role == "listen":
        with socket.create_server((address, 0)) as listener:
            print(listener.getsockname()[1], flush=True)
            connection = listener.accept()[0]
    else:
        host, port = address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)))
    start = time.monotonic()
    sender = threading.Thread(target=send, args=(connection, start + WARM_UP + MEASURED), daemon=True)
    sender.start()
    print(receive(connection, start + WARM_UP, start + WARM_UP + MEASURED), flush=True)


main()
