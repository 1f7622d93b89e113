"""A forger without a key, on the path to a summation server, sends frames in the server's name before the server's proof: the agent ignores
them.

The forger cuts connections, and inserts frames before the server's first answer when the agent reconnects. The plain-text HELLO has the
numbers that the frames need; the others can be guessed.
"""
import contextlib
import socket
import struct
import threading
import time

import pytest

from tests.support import wire
from tests.support.cluster import Cluster, PATIENCE
from tests.support.ports import behind
from tests.support.processes import eventually
from tests.support.rounds import completed, finish, goes_on

ELEMENTS = 1000
SEND_AGAIN, MOVED, RECOVER, ABORTED, STAMP = 6, 5, 7, 8, 12
REPLY = 4
FORGED = struct.pack("<f", 666.0) * ELEMENTS
TENSORS = range(1, 4)
BEFORE_THE_PROOF = "before the summation server had proved that it knows the job's key"


class Forger(wire.Proxy):
    """Forwards bytes; before the server's bytes on a link it inserts `forge(hello)`, given the fields of the node's HELLO."""

    def __init__(self, host, port, target):
        self.forge, self.forgeries, self.swallows = None, 0, False
        super().__init__(host, port, target, None)

    def cut(self):
        """Cuts the present connections; the agents reconnect meanwhile."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _link(self, client):
        server = socket.create_connection(self._target)
        self._connections += [client, server]
        header = wire.receive_exactly(client, wire.HEADER.size)
        if len(header) == wire.HEADER.size:
            hello = wire.decode(header)
            if self.forge is not None:
                with contextlib.suppress(OSError):
                    client.sendall(self.forge(hello))
                self.forgeries += 1
            with contextlib.suppress(OSError):
                server.sendall(header + wire.receive_exactly(client, hello["payload_bytes"]))
        for source, sink, to_server in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._forward, args=(source, sink, to_server), daemon=True).start()

    def _forward(self, source, sink, to_server):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if to_server or not self.swallows:
                    sink.sendall(data)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def frames(hello, kind, rounds):
    """The frames that a server could send about the tensors' first partitions in these rounds."""
    said = b""
    for tensor in TENSORS:
        for round_number in rounds:
            fields = dict(job=hello["job"], generation=hello["generation"], sender=1, incarnation=1, partition=tensor << 32, round=round_number)
            if kind == wire.RESULT:
                said += wire.encode(type=kind, contributors=2, payload_bytes=len(FORGED), uncompressed_bytes=len(FORGED), plan_version=1, **fields) + FORGED
            elif kind == STAMP:
                said += wire.encode(type=kind, payload_bytes=24, uncompressed_bytes=24, plan_version=1, **fields) + bytes(24)
            elif kind == MOVED:
                said += wire.encode(type=kind, plan_version=1 << 40, **fields)
            else:
                said += wire.encode(type=kind, flags=REPLY if kind == RECOVER else 0, plan_version=1, **fields)
    return said


def goodbye(exit_status):
    def said(hello):
        reason = b"another version"
        detail = 9 | exit_status << 8  # FAILED_PRECONDITION
        return wire.encode(type=wire.GOAWAY, job=hello["job"], detail=detail, payload_bytes=len(reason), uncompressed_bytes=len(reason)) + reason
    return said


@contextlib.contextmanager
def job_through_a_forger(tmp_path, encrypted, prepare=lambda forger: None):
    secret = tmp_path / "secret"
    secret.write_text("known to the job's agents alone")
    with Cluster(tmp_path, nodes=0, agent_flags=["--colocated-summation=false", f"--encrypt-data={str(encrypted).lower()}", f"--job-secret-file={secret}"]) as cluster:
        server = cluster.start_summation(*behind("127.0.0.2"))
        cluster.await_ports(server)
        port = server.ports["data"]
        with Forger("127.0.0.2", port, ("127.0.0.1", port)) as forger:
            prepare(forger)
            cluster.nodes = 2
            for node in range(2):
                cluster.await_ports(cluster.start_agent(node))
            yield cluster, forger, cluster.start_ranks("ones.py", {"elements": ELEMENTS})


def begin(ranks):
    ranks.wait_at("running")
    ranks.open("running")


def agents_say(cluster, words):
    return any(words in agent.text() for agent in cluster.agents.values())


def cut_while_results_are_awaited(forger, ranks, forge):
    """`forge(hello, rounds)`: with the rounds whose results the agents await when they reconnect."""
    forger.swallows = True
    before = -1
    while before != (before := completed(ranks)):  # until no round completes
        time.sleep(0.3)
    rounds = range(before, before + 4)
    forger.forge = lambda hello: forge(hello, rounds)
    forger.swallows = False
    forger.cut()
    eventually(lambda: forger.forgeries >= 2, 20 * PATIENCE, "both agents to connect again")
    forger.forge = None


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("kind", [wire.RESULT, STAMP, SEND_AGAIN, MOVED, RECOVER, ABORTED], ids=["result", "stamp", "send_again", "moved", "recover", "aborted"])
def test_no_frame_is_taken_before_the_proof_when_a_link_is_made_again(tmp_path, kind, encrypted):
    with job_through_a_forger(tmp_path, encrypted) as (cluster, forger, ranks):
        begin(ranks)
        goes_on(ranks)
        cut_while_results_are_awaited(forger, ranks, lambda hello, rounds: frames(hello, kind, rounds))
        goes_on(ranks)
        finish(ranks)
        assert agents_say(cluster, BEFORE_THE_PROOF)


@pytest.mark.parametrize("encrypted", [True, False])
def test_no_result_is_taken_before_the_proof_on_a_first_link(tmp_path, encrypted):
    seen = set()

    def forge(hello):
        first = hello["sender"] not in seen
        seen.add(hello["sender"])
        return frames(hello, wire.RESULT, range(1, 4)) if first else b""

    def prepare(forger):
        forger.forge = forge
    with job_through_a_forger(tmp_path, encrypted, prepare) as (cluster, forger, ranks):
        begin(ranks)
        goes_on(ranks)
        finish(ranks)
        assert forger.forgeries >= 2 and agents_say(cluster, BEFORE_THE_PROOF)


@pytest.mark.parametrize("exit_status", [65, pytest.param(66, marks=pytest.mark.full), 70])
def test_an_unauthenticated_goodbye_does_not_end_the_job(tmp_path, exit_status):
    with job_through_a_forger(tmp_path, encrypted=True) as (_, forger, ranks):
        begin(ranks)
        goes_on(ranks)
        cut_while_results_are_awaited(forger, ranks, lambda hello, rounds: goodbye(exit_status)(hello))
        goes_on(ranks)
        finish(ranks)
