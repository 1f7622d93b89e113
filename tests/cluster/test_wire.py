"""Invalid frames: a service refuses them with a reason, and its other links are unaffected."""
import contextlib
import itertools
import socket
import struct

import pytest

from tests.support import wire
from tests.support.cluster import Cluster, PATIENCE
from tests.support.ports import behind
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running


def answer_to(port, data):
    """Sends `data` to a data port and returns the received bytes when the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10 * PATIENCE) as connection:
        connection.sendall(data)
        return wire.receive_exactly(connection, 1 << 20)


def bad_frames(job):
    """By name: the bytes of a link to the job's server, and a word of the reason for which it closes the link."""
    hello = wire.encode(type=wire.HELLO, job=job, generation=1, payload_bytes=40, uncompressed_bytes=40) + bytes(40)
    proof = wire.encode(type=wire.PROOF, job=job, generation=1, payload_bytes=32, uncompressed_bytes=32) + bytes(32)
    return {
        "another version": (struct.pack("<IH", wire.MAGIC, 99) + hello[6:], "version 99"),
        "no frame at all": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(96), "magic"),
        "a wrong checksum": (hello[:60] + b"\xff" + hello[61:], "checksum"),
        "an unknown type": (wire.encode(type=77) + bytes(64), "type"),
        "a huge payload": (wire.encode(type=wire.CONTRIBUTION, payload_bytes=0xFFFFFFFF), "payload"),
        "a wrong proof": (hello + proof, "token"),
        "a proof without a hello": (proof, "PROOF"),
        "a contribution before the hello": (wire.encode(type=wire.CONTRIBUTION, job=job, generation=1, payload_bytes=4) + bytes(4), "HELLO"),
        "a bundle before the hello": (wire.encode(type=wire.BUNDLE, detail=1, payload_bytes=96) + hello[:96], "HELLO"),
    }


@pytest.mark.parametrize("name", bad_frames(1))
def test_bad_frame_closes_its_own_connection_only(tmp_path, name):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("steps.py", {"steps": 300, "gate": "running"})
        ranks.wait_at("running")
        server = cluster.servers[0]
        data, words = bad_frames(cluster.addendctl("jobs")[0]["job_id"])[name]
        reply = answer_to(server.ports["data"], data)
        if name == "another version":
            assert len(reply) >= wire.HEADER.size
            goaway = wire.decode(reply[:wire.HEADER.size])
            assert goaway["type"] == wire.GOAWAY and goaway["detail"] >> 8 == 66
        eventually(lambda: words in server.text(), 5, "the reason in the server's log")
        ranks.open("running")
        assert all(outcome.result["error"] is None for outcome in ranks.join())
        assert server.returncode is None


@contextlib.contextmanager
def cluster_behind_proxy(tmp_path, rewrite, nodes=2):
    """A cluster whose only summation server is behind a proxy: the server advertises another local address."""
    with Cluster(tmp_path, nodes=0, shards=2) as cluster:
        server = cluster.start_summation(*behind("127.0.0.2"))
        cluster.await_ports(server)
        port = server.ports["data"]
        with wire.Proxy("127.0.0.2", port, ("127.0.0.1", port), rewrite):
            cluster.nodes = nodes
            for node in range(nodes):
                cluster.await_ports(cluster.start_agent(node, "--colocated-summation=false"))
            yield cluster


def test_an_unproved_answer_of_another_version_is_named_on_every_rank(tmp_path):
    """The peer has not proved its identity, so its version ends no job with status 66; but no other server can sum here, and the error names the
    reason."""
    def rewrite(to_server, fields, frame):
        return frame if to_server else frame[:4] + struct.pack("<H", wire.VERSION + 1) + frame[6:]

    with cluster_behind_proxy(tmp_path, rewrite) as cluster:
        for outcome in cluster.run_ranks("attempt.py", timeout=10):
            error = outcome.result["push_pull"]
            assert error["error"] is not None and error["code"] != 66, error
            assert "the peer speaks version" in error["text"] and "nobody else can sum" in error["text"], error
            assert error["seconds"] < 10 * PATIENCE


@contextlib.contextmanager
def node_behind_proxy(tmp_path, rewrite):
    """Two nodes; a node reaches the other's colocated server through a proxy."""
    with Cluster(tmp_path, nodes=0) as cluster:
        cluster.nodes = 2
        cluster.await_ports(cluster.start_agent(0))
        agent = cluster.start_agent(1, *behind("127.0.0.2"))
        cluster.await_ports(agent)
        port = agent.ports["data"]
        with wire.Proxy("127.0.0.2", port, ("127.0.0.1", port), rewrite):
            yield cluster


@pytest.mark.parametrize("every", [97, 1000])
@pytest.mark.parametrize("behind_proxy", [cluster_behind_proxy, node_behind_proxy])
def test_a_reset_link_does_not_make_its_server_lost(tmp_path, behind_proxy, every):
    """The proxy breaks a connection after every `every` frames of any type; the lost frames are sent again."""
    frames = itertools.count(1)

    def rewrite(to_server, fields, frame):
        if next(frames) % every == 0:
            raise ConnectionResetError
        return frame

    with behind_proxy(tmp_path, rewrite) as cluster:
        ranks = running(cluster)
        before = [server["server_id"] for server in cluster.addendctl("status")["servers"]]
        goes_on(ranks, rounds=60, timeout=60)
        assert [server["server_id"] for server in cluster.addendctl("status")["servers"]] == before, "none was declared dead"
        finish(ranks)


def test_a_server_that_refuses_a_frame_is_an_error_and_no_reset(tmp_path):
    def rewrite(to_server, fields, frame):
        if not to_server or fields["type"] != wire.CONTRIBUTION:
            return frame
        return wire.encode(**{**fields, "op": 99 if fields["op"] else 1})[:wire.HEADER.size] + frame[wire.HEADER.size:]

    with cluster_behind_proxy(tmp_path, rewrite) as cluster:
        for outcome in cluster.run_ranks("attempt.py", timeout=10):
            assert outcome.result["push_pull"]["error"] is not None


def test_result_of_an_old_round_is_not_accepted(tmp_path):
    """The proxy repeats the result of the previous round before every result but the first, as a late retransmission would be.

    A single node, so that a partition's results use the same connection.
    """
    last = {}

    def rewrite(to_server, fields, frame):
        if to_server or fields["type"] != wire.RESULT:
            return frame
        before, last[fields["partition"]] = last.get(fields["partition"], b""), frame
        return before + frame

    with cluster_behind_proxy(tmp_path, rewrite, nodes=1) as cluster:
        for outcome in cluster.run_ranks("steps.py", {"steps": 20}):
            assert outcome.result["error"] is None, outcome.result["text"]


def test_contribution_of_an_old_round_is_not_summed(tmp_path):
    last = {}

    def rewrite(to_server, fields, frame):
        if not to_server or fields["type"] != wire.CONTRIBUTION:
            return frame
        key = (fields["partition"], fields["sender"])
        before, last[key] = last.get(key, b""), frame
        return before + frame

    with cluster_behind_proxy(tmp_path, rewrite) as cluster:
        for outcome in cluster.run_ranks("steps.py", {"steps": 20}):
            assert outcome.result["error"] is None, outcome.result["text"]
