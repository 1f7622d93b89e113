"""Links with --encrypt-data, seen by a process on the path between agents and servers."""
import socket

import pytest

from tests.support import wire
from tests.support.cluster import Cluster, run_binary
from tests.support.ports import behind
from tests.support.rounds import finish, goes_on, running

HANDSHAKE = {wire.HELLO, wire.CHALLENGE, wire.PROOF, wire.GOAWAY}


class Between(wire.Proxy):
    """Forwards bytes, not frames; `seen`: the bytes after the handshake. `change(to_server, bytes)` may return other bytes."""

    def __init__(self, host, port, target, change=lambda to_server, data: data):
        self.seen, self.links = bytearray(), 0
        self._change = change
        super().__init__(host, port, target, None)

    def _forward(self, source, sink, to_server):
        try:
            # The node sends HELLO and PROOF, the server CHALLENGE and HELLO.
            for _ in range(2):
                header = wire.receive_exactly(source, wire.HEADER.size)
                if len(header) < wire.HEADER.size:
                    raise ConnectionResetError
                fields = wire.decode(header)
                assert fields["type"] in HANDSHAKE, fields
                sink.sendall(header + wire.receive_exactly(source, fields["payload_bytes"]))
            self.links += 1
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(self._change(to_server, data))
        except OSError:
            pass
        for connection in (source, sink):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.mark.parametrize("encrypted", [True, False])
def test_nobody_between_sees_a_frame(tmp_path, encrypted):
    with Cluster(tmp_path, nodes=0, agent_flags=["--colocated-summation=false", f"--encrypt-data={str(encrypted).lower()}"]) as cluster:
        server = cluster.start_summation(*behind("127.0.0.2"))
        cluster.await_ports(server)
        port = server.ports["data"]
        with Between("127.0.0.2", port, ("127.0.0.1", port)) as between:
            cluster.nodes = 2
            for node in range(2):
                cluster.await_ports(cluster.start_agent(node))
            finish(running(cluster))
            assert between.links > 0 and len(between.seen) > 1 << 20
            assert (b"ADND" in between.seen) != encrypted, "every frame begins so"


def test_a_byte_that_was_changed_closes_the_link_and_costs_no_bit(tmp_path):
    """A byte in every four million changes; without encryption a changed gradient would be summed."""
    passed = 0

    def change(to_server, data):
        nonlocal passed
        before, passed = passed, passed + len(data)
        if before >> 22 == passed >> 22:
            return data
        return data[:-1] + bytes([data[-1] ^ 1])

    with Cluster(tmp_path, nodes=0, agent_flags=["--colocated-summation=false", "--encrypt-data"]) as cluster:
        server = cluster.start_summation(*behind("127.0.0.2"))
        cluster.await_ports(server)
        port = server.ports["data"]
        with Between("127.0.0.2", port, ("127.0.0.1", port), change) as between:
            cluster.nodes = 2
            for node in range(2):
                cluster.await_ports(cluster.start_agent(node))
            ranks = running(cluster)
            goes_on(ranks, rounds=30)
            finish(ranks)
            assert between.links > 4, "it was closed and made again"
            assert "an encrypted record" in server.text() + cluster.agents[0].text() + cluster.agents[1].text()


def test_a_whole_cluster_trains_encrypted(tmp_path):
    """The cluster has the nodes' own servers, and one of two CPU servers is killed."""
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=2, shards=2, agent_flags=["--encrypt-data"]) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        cluster.servers[0].kill()
        goes_on(ranks)
        finish(ranks)


def test_what_a_nic_writes_cannot_be_encrypted(tmp_path):
    result = run_binary("addend-agent", "--job=job", "--encrypt-data", "--transport=rdma", f"--socket={tmp_path}/s")
    assert result.returncode == 64 and "--encrypt-data and --transport=rdma exclude each other" in result.stderr
