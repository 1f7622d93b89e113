"""Hand-made members of other versions among real members: a member that does not fit is refused or left out of plans, without harm to
running jobs.
"""
import random
import shutil
import signal
import socket
import sqlite3
import threading

import grpc

from tests.support import wire
from tests.support.cluster import Cluster, PATIENCE
from tests.support.hostile_job import Scheduler
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

NEWER = wire.VERSION + 1


class NewerServer:
    """A CPU server with only a newer version of the frames: it accepts every reservation, and refuses every link."""

    def __init__(self, cluster):
        self.scheduler = Scheduler(cluster.scheduler_address)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.partitions = 0
        self.key = random.randbytes(32)
        self.incarnation = random.getrandbits(63)
        data = {"transport": "tcp", "host": "127.0.0.1", "port": self.listener.getsockname()[1]}
        ranges = {"frame": {"oldest": NEWER, "newest": NEWER}} if hasattr(self.scheduler.messages.RegisterServerRequest, "protocols") else None
        answer = self.say("RegisterServer", protocol_version=1, incarnation=self.incarnation, control_address="127.0.0.1:1", shards=1,
                          endpoints=[data], hostname="newer", member_key=self.key, bandwidth_bps=1e11, protocols=ranges)
        self.member = self.scheduler.messages.MemberId(server_id=answer.server_id, incarnation=self.incarnation, key=self.key)
        for work in (self._beat, self._watch, self._refuse):
            threading.Thread(target=work, daemon=True).start()

    def say(self, method, **fields):
        return self.scheduler.call(method, getattr(self.scheduler.messages, f"{method}Request")(**fields))

    def _beat(self):
        stop = threading.Event()
        while not stop.wait(0.5):
            try:
                self.say("Heartbeat", member=self.member)
            except (grpc.RpcError, ValueError):
                return

    def _watch(self):
        messages = self.scheduler.messages
        watch = self.scheduler._channel.unary_stream(
            "/addend.v1.Scheduler/WatchServer", messages.WatchRequest.SerializeToString, messages.ServerUpdate.FromString)
        try:
            for update in watch(messages.WatchRequest(member=self.member)):
                self.partitions += sum(len(tensor.partitions) for job in update.jobs for tensor in job.reserve)
                self.say("AckReservation", member=self.member, update_id=update.update_id, free_bytes=2**64 - 1)
        except (grpc.RpcError, ValueError):
            pass

    def _refuse(self):
        """Like a real server: answers a HELLO of another version with GOAWAY and status 66."""
        reason = b"the peer speaks another version"
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                wire.receive_exactly(connection, wire.HEADER.size)
                connection.sendall(wire.encode(type=wire.GOAWAY, detail=9 | 66 << 8, payload_bytes=len(reason)) + reason)

    def close(self):
        self.listener.close()
        self.scheduler._channel.close()


def test_a_newer_server_that_joins_does_not_fail_a_running_job(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        newer = NewerServer(cluster)
        try:
            eventually(lambda: "newer" in cluster.scheduler.log.read_text(), 10 * PATIENCE, "the newer server's joining")
            goes_on(ranks, rounds=40)
            # A further change of the plan also leaves the newer server out.
            cluster.await_ports(cluster.start_summation())
            eventually(lambda: "is in force" in cluster.scheduler.log.read_text(), 20 * PATIENCE, "a share for a server of this version")
            goes_on(ranks, rounds=20)
            assert newer.partitions == 0
            finish(ranks)
        finally:
            newer.close()


def test_a_node_that_the_others_cannot_speak_with_is_refused_with_both_ranges(tmp_path):
    with Cluster(tmp_path, nodes=0) as cluster:
        scheduler = Scheduler(cluster.scheduler_address)

        def register(node, version):
            settings = {"num_nodes": 2, "local_size": 1, "on_node_loss": "fail", "reduction_order": "node"}
            return scheduler.call("RegisterNode", scheduler.messages.RegisterNodeRequest(
                protocol_version=1, incarnation=random.getrandbits(63), job="job", node_rank=node, settings=settings, hostname=f"gpu{node}",
                member_key=random.randbytes(32), protocols={"frame": {"oldest": version, "newest": version}}))
        register(0, wire.VERSION)
        try:
            register(1, NEWER)
            raise AssertionError("a node that cannot speak with the others was let in")
        except grpc.RpcError as refused:
            assert refused.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert f"version {NEWER}" in refused.details() and f"version {wire.VERSION}" in refused.details()
        register(1, wire.VERSION)


def test_a_store_of_a_newer_version_is_refused(tmp_path):
    (tmp_path / "store").mkdir()
    database = tmp_path / "store" / "scheduler.db"
    with Cluster(tmp_path, nodes=0, store=f"sqlite:{database}") as cluster:
        cluster.scheduler.signal(signal.SIGTERM)
        cluster.scheduler.wait(10 * PATIENCE)
        with sqlite3.connect(database) as connection:
            connection.execute("INSERT OR REPLACE INTO records VALUES ('format', ?)", (b"\x08\x63",))
        connection.close()
        again = cluster.start("scheduler.again", cluster.scheduler.command)
        assert again.wait(10 * PATIENCE) == 66, again.tail()
        assert "version 99" in again.tail(1) and str(database) in again.tail(1)
        shutil.rmtree(tmp_path / "store")
