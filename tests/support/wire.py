"""The data path's frame, as docs/wire-format.md defines it, and a proxy that can inspect and change frames."""
import socket
import struct
import threading

HEADER = struct.Struct("<IHBBBBHIQIIQQQQiIIII8xI")
assert HEADER.size == 96
MAGIC, VERSION = 0x444E4441, 7
HELLO, CONTRIBUTION, RESULT, ACK, GOAWAY, PING, BUNDLE, CHALLENGE, PROOF = 1, 2, 3, 4, 9, 10, 11, 15, 16
_FIELDS = ("magic", "version", "type", "dtype", "op", "encoding", "flags", "sender", "job", "generation", "contributors",
           "incarnation", "plan_version", "partition", "round", "priority", "payload_bytes", "uncompressed_bytes",
           "payload_crc", "detail", "crc")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def decode(header):
    return dict(zip(_FIELDS, HEADER.unpack(header)))


def encode(**fields):
    """A header with a correct checksum; missing fields are 0, magic and version are the current values."""
    values = {"magic": MAGIC, "version": VERSION, **fields}
    header = HEADER.pack(*(values.get(name, 0) for name in _FIELDS))
    return header[:-4] + struct.pack("<I", crc32c(header[:-4]))


def receive_exactly(connection, size):
    """`size` bytes, or fewer if the peer closed (which resets the connection if the peer had not read everything)."""
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(min(size - len(data), 1 << 20))
        except ConnectionResetError:
            break
        if not part:
            break
        data += part
    return bytes(data)


def frames_of(fields, frame):
    """The frame as (fields, bytes); for a bundle, the frames in it."""
    if fields["type"] != BUNDLE:
        return [(fields, frame)]
    frames, end = [], HEADER.size * (1 + fields["detail"])
    for start in range(HEADER.size, end, HEADER.size):
        header = frame[start:start + HEADER.size]
        own = decode(header)
        frames.append((own, header + frame[end:end + own["payload_bytes"]]))
        end += own["payload_bytes"]
    return frames


class Proxy:
    """Relays between agents and a summation server: listens on (host, port) and forwards to `target`.

    `rewrite(to_server, fields, frame)` is called for each frame, including the frames of a bundle, and returns the bytes to forward instead
    of `frame`.
    """

    def __init__(self, host, port, target, rewrite):
        self._target, self._rewrite = target, rewrite
        self._listener = socket.create_server((host, port))
        self._connections = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._link, args=(client,), daemon=True).start()

    def _link(self, client):
        server = socket.create_connection(self._target)
        self._connections += [client, server]
        for source, sink, to_server in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._forward, args=(source, sink, to_server), daemon=True).start()

    def _forward(self, source, sink, to_server):
        try:
            while len(header := receive_exactly(source, HEADER.size)) == HEADER.size:
                fields = decode(header)
                payload = receive_exactly(source, fields["payload_bytes"])
                for own, frame in frames_of(fields, header + payload):
                    sink.sendall(self._rewrite(to_server, own, frame))
        except OSError:
            pass
        for connection in (source, sink):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        for connection in self._connections:
            connection.close()
