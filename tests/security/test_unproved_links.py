"""Links before an end has proved its identity: frames inserted on the path between agent and server, and connections of strangers."""
import collections
import itertools
import select
import socket
import struct
import threading
import time

import pytest

from tests.support import wire
from tests.support.cluster import Cluster, PATIENCE
from tests.support.ports import behind
from tests.support.processes import eventually
from tests.support.rounds import completed, finish, goes_on, running

MOVED, SEND_AGAIN, RECOVER, ABORTED, STAMP = 5, 6, 7, 8, 12
KINDS = [wire.RESULT, STAMP, SEND_AGAIN, MOVED, RECOVER, ABORTED]
SIZES = (8, 10_002)  # two of the tensors that rounds.py sums
TENSORS = range(1, 9)


class Forger:
    """A process on the path without a key. On every other connection of each node it inserts frames before the server's proof: before
    CHALLENGE or before the server's HELLO, one kind at a time, for the rounds that may be under way. It cuts the connections between after a
    while. (A node whose connections failed several times in a row would report the server, which ends the job.)
    """

    def __init__(self, host, port, rounds):
        self.injected = {}  # kind -> number of insertions
        self._target, self._rounds, self._connections = ("127.0.0.1", port), rounds, []
        self._turns = collections.defaultdict(itertools.count)  # by node
        self._plan = itertools.cycle(itertools.product(KINDS, (0, 1)))
        self._listener = socket.create_server((host, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                node, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._connections += [node, server]
            threading.Thread(target=self._serve, args=(node, server), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink):
        header = wire.receive_exactly(source, wire.HEADER.size)
        fields = wire.decode(header)
        sink.sendall(header + wire.receive_exactly(source, fields["payload_bytes"]))
        return fields

    def _forged(self, kind, hello):
        round_ = self._rounds()
        sizes = SIZES if kind == wire.RESULT else (24,) if kind == STAMP else (0,)
        frames = [wire.encode(type=kind, job=hello["job"], generation=hello["generation"], partition=tensor << 32, round=number,
                              plan_version=1, payload_bytes=size, uncompressed_bytes=size) + b"\x42" * size
                  for number in range(max(round_ - 1, 1), round_ + 4) for tensor in TENSORS for size in sizes]
        return b"".join(frames)

    def _serve(self, node, server):
        try:
            hello = self._pass_on(node, server)
            forges = next(self._turns[hello["sender"]]) % 2 == 0
            if forges:
                kind, behind_challenge = next(self._plan)
                if behind_challenge:
                    self._pass_on(server, node)
                node.sendall(self._forged(kind, hello))
                self.injected[kind] = self.injected.get(kind, 0) + 1
            self._relay(node, server, None if forges else time.monotonic() + 0.3)
        except (OSError, struct.error):
            pass
        for connection in (node, server):
            connection.close()

    @staticmethod
    def _relay(node, server, until):
        while until is None or time.monotonic() < until:
            for source in select.select([node, server], [], [], 0.05)[0]:
                data = source.recv(1 << 16)
                if not data:
                    return
                (server if source is node else node).sendall(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        for connection in self._connections:
            connection.close()


def under_way(ranks):
    """The approximate number of the round under way."""
    try:
        return completed(ranks) + 1
    except (AttributeError, OSError):  # no rank has begun
        return 1


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_frame_before_the_servers_proof_changes_no_sum(tmp_path, encrypted):
    """Covers the first link and renewed links; every sum of every rank is compared with the reference."""
    secret = tmp_path / "secret"
    secret.write_text("of this job alone\n")
    secret.chmod(0o600)
    flags = ["--colocated-summation=false", f"--encrypt-data={str(encrypted).lower()}", f"--job-secret-file={secret}"]
    with Cluster(tmp_path, nodes=0, agent_flags=flags) as cluster:
        server = cluster.start_summation(*behind("127.0.0.2"))
        cluster.await_ports(server)
        ranks = None
        with Forger("127.0.0.2", server.ports["data"], lambda: under_way(ranks)) as forger:
            cluster.nodes = 2
            for node in range(2):
                cluster.await_ports(cluster.start_agent(node))
            ranks = running(cluster)
            eventually(lambda: sum(forger.injected.values()) >= 24 or any(process.returncode is not None for process in ranks.processes.values()),
                       60 * PATIENCE, "each kind to be put in twice, before CHALLENGE and before HELLO")
            finish(ranks)
        assert set(forger.injected) == set(KINDS)
        for agent in cluster.agents.values():
            assert "came before the summation server had proved" in agent.text(), "the log says why a link was closed"
            assert "connected again" in agent.text()


def resident(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def test_strangers_who_ask_and_never_read_take_no_memory(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        server = cluster.servers[0]
        ranks = running(cluster)
        goes_on(ranks)
        before = resident(server)
        pings = wire.encode(type=wire.PING) * 10_000
        connections = []
        for _ in range(100):
            connection = socket.create_connection(("127.0.0.1", server.ports["data"]))
            connection.setblocking(False)
            connections.append(connection)
        most, sent = before, [0] * len(connections)
        for _ in range(100):
            for index, connection in enumerate(connections):
                try:
                    sent[index] += connection.send(pings[sent[index] % wire.HEADER.size:])
                except OSError:  # the connection is full, or closed
                    pass
            most = max(most, resident(server))
            if most - before > 64 << 20:
                break
            time.sleep(0.05)
        goes_on(ranks)
        most = max(most, resident(server))
        for connection in connections:
            connection.close()
        finish(ranks)
        assert most - before < 8 << 20, "for a hundred of them together"
        assert "a link begins with a HELLO" in server.text()
