"""Tokens and the handshake of a link, as docs/wire-format.md defines them, for tests that act as nodes or claim to be nodes."""
import hashlib
import hmac
import os
import pathlib
import shutil
import socket
import sqlite3
import struct
import tempfile
import time

from tests.support import wire


def _signed(secret, label, *fields):
    """Fields are 64-bit numbers, or bytes."""
    text = label + b"\0" + b"".join(field if isinstance(field, bytes) else struct.pack("<Q", field) for field in fields)
    return hmac.digest(secret, text, hashlib.sha256)


def token(key, job, generation, node, expires):
    return _signed(key, b"addend token 1", job, generation, node, expires)


def _fields(message):
    """The number and bytes fields of a protobuf message: {field number: last value}."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(message):
        tag = number()
        if tag & 7 == 0:
            found[tag >> 3] = number()
        elif tag & 7 == 1:
            found[tag >> 3] = message[at:at + 8]
            at += 8
        else:
            size = number()
            found[tag >> 3] = message[at:at + size]
            at += size
    return found


class Job:
    """A job in a scheduler's database: `id`, `key`, `generation`."""

    def __init__(self, database, name="job"):
        with tempfile.TemporaryDirectory() as copy:  # the scheduler has locked the original
            for path in pathlib.Path(database).parent.glob(f"{pathlib.Path(database).name}*"):
                shutil.copy(path, copy)
            connection = sqlite3.connect(pathlib.Path(copy) / pathlib.Path(database).name)
            records = [_fields(value) for key, value in connection.execute("SELECT key, value FROM records") if key.startswith("job/")]
            connection.close()
        record, = [record for record in records if record[2] == name.encode()]
        self.id, self.key, self.generation = record[1], record[4], record[5]


class Link:
    """A node's end of a link to a summation server's data port: sends HELLO, and answers the challenge.

    It claims `job`, `generation` and `node`; it signs with `secret`, or with the token of its claims.
    """

    def __init__(self, port, job, node=0, generation=None, expires=None, secret=None, shard=0, incarnation=77, host="127.0.0.1"):
        self.connection = socket.create_connection((host, port), timeout=30)
        self.job, self.node, self.shard, self.incarnation = job.id, node, shard, incarnation
        self.generation = job.generation if generation is None else generation
        self.expires = int(time.time()) + 600 if expires is None else expires
        self.secret = secret or token(job.key, self.job, self.generation, node, self.expires)
        self.nonce = os.urandom(32)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def encode(self, kind, payload=b"", **fields):
        fields = {**dict(type=kind, job=self.job, generation=self.generation, sender=self.node, incarnation=self.incarnation,
                         partition=self.shard, payload_bytes=len(payload), uncompressed_bytes=len(payload)), **fields}
        return wire.encode(**fields) + payload

    def send(self, kind, payload=b"", **fields):
        self.connection.sendall(self.encode(kind, payload, **fields))

    def receive(self):
        """The next frame as (fields, payload); (None, b"") at the end."""
        header = wire.receive_exactly(self.connection, wire.HEADER.size)
        if len(header) < wire.HEADER.size:
            return None, b""
        fields = wire.decode(header)
        return fields, wire.receive_exactly(self.connection, fields["payload_bytes"])

    def hello(self):
        """Returns the server's answer; keeps `server` and `server_nonce` of a challenge."""
        self.send(wire.HELLO, struct.pack("<Q", self.expires) + self.nonce)
        fields, payload = self.receive()
        if fields and fields["type"] == wire.CHALLENGE:
            self.server, self.server_nonce = fields["incarnation"], payload
        return fields, payload

    def _proof(self, label):
        return _signed(self.secret, label, self.job, self.generation, self.node, self.expires, self.incarnation, self.server, self.shard,
                       0, self.nonce, self.server_nonce)

    def proof(self):
        return self._proof(b"addend node 1")

    def prove(self, proof=None):
        self.send(wire.PROOF, proof or self.proof())
        return self.receive()

    def open(self, then=b""):
        """Does the whole handshake; fails unless the server admits the node and proves its identity. `then`: frames sent right after the
        proof, before the node's agent can take its link back.
        """
        fields, payload = self.hello()
        assert fields["type"] == wire.CHALLENGE, (fields, payload)
        self.connection.sendall(self.encode(wire.PROOF, self.proof()) + then)
        fields, payload = self.receive()
        assert fields["type"] == wire.HELLO, (fields, payload)
        assert payload == self._proof(b"addend server 1")
        return self
