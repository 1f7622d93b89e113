"""Keeps many connections to a port open: python3 -m tests.security.flood HOST:PORT CONNECTIONS KIND

silent: sends nothing. half: a HELLO whose payload never comes. slow: a HELLO, a byte a second. Prints "open" when all connections are made,
and replaces connections that the peer closes, until standard input ends.
"""
import resource
import selectors
import socket
import sys
import time

from tests.support import wire

HELLO = wire.encode(type=wire.HELLO, job=1, generation=1, payload_bytes=40, uncompressed_bytes=40)
AT_ONCE = {"silent": b"", "half": HELLO, "slow": b""}
PER_SECOND = 5000  # at most


class Flood:
    def __init__(self, address, kind):
        self.address, self.kind = address, kind
        self.open, self.made = selectors.DefaultSelector(), 0

    def connect(self):
        connection = socket.socket()
        # Not from ports that the kernel chooses, which concurrent tests need. Many addresses of this machine provide other ports.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind((f"127.0.1.{1 + self.made % 200}", 10_000 + self.made // 200 % 20_000))
        connection.connect(self.address)
        connection.setblocking(False)
        self.made += 1
        try:
            connection.send(AT_ONCE[self.kind])
        except OSError:  # closed already
            pass
        self.open.register(connection, selectors.EVENT_READ)

    def drop_closed(self):
        for key, _ in self.open.select(0):
            try:
                ended = not key.fileobj.recv(4096)
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                self.open.unregister(key.fileobj)
                key.fileobj.close()

    def say_a_byte(self, seconds):
        for key in self.open.get_map().values():
            try:
                key.fileobj.send(HELLO[seconds % len(HELLO):][:1])
            except OSError:
                pass

    def size(self):
        return len(self.open.get_map())


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    count, kind = int(sys.argv[2]), sys.argv[3]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flood = Flood((host, int(port)), kind)
    for _ in range(count):
        flood.connect()
    print("open", flush=True)
    ends = selectors.DefaultSelector()
    ends.register(sys.stdin, selectors.EVENT_READ)
    begin, said = time.monotonic(), 0
    while not ends.select(0.01):
        flood.drop_closed()
        for _ in range(min(count - flood.size(), PER_SECOND // 100)):
            flood.connect()
        if kind == "slow" and time.monotonic() - begin > said:
            flood.say_a_byte(said)
            said += 1


if __name__ == "__main__":
    main()
