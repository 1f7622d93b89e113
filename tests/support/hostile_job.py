"""A job without agents: a single process that registers all its nodes, links each to the only summation server, and floods the server.

    python3 -m tests.support.hostile_job KIND --scheduler=HOST:PORT [--nodes=8] [--bytes=...] [--partition-bytes=...]

KIND is the flood, without end, as fast as the server reads, from all nodes at once:

    rounds   a job's normal traffic: contributions, and the next round when all results are there
    early    contributions whose turn never comes, since the first node sends no contribution
    unread   contributions to a round that has its result, which is sent again each time; no node reads
    amplify  the same with contributions marked as empty; every node reads, and requests more than it reads
    tiny     frames without payload that the server answers
    updates  asynchronous updates, each sent before the answer to the former can be read; no node reads
    jobs     a sequence of jobs, each with another name: a job joins, its tensor is planned, and it leaves
    refused  no flood: prints the scheduler's reason to refuse the tensor, and ends

Prints "flooding" when it has begun. A link that the server closes is reconnected.
"""
import argparse
import contextlib
import importlib
import itertools
import pathlib
import random
import selectors
import subprocess
import sys
import tempfile
import threading
import time

from tests.support import tokens, wire

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTOCOL_VERSION_FILE = ROOT / "lib" / "base" / "version.h"
FLOODS = ("rounds", "early", "unread", "amplify", "tiny", "updates", "jobs")
ACCUMULATE = 5
EMPTY = 1  # the flag of an empty contribution
BLOCK = 1 << 20
KEY = b"one process speaks for all nodes"


class Scheduler:
    """The scheduler's service, with the messages of its proto file."""

    def __init__(self, address):
        import grpc  # here, because a test that imports this file must not import grpc
        folder = tempfile.mkdtemp()
        files = ["proto/addend/v1/common.proto", "proto/addend/v1/scheduler.proto"]
        subprocess.run(["protoc", f"--proto_path={ROOT}", f"--python_out={folder}", *files], check=True)
        sys.path.insert(0, folder)
        self.messages = importlib.import_module("proto.addend.v1.scheduler_pb2")
        self._channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])

    def call(self, method, request):
        answer = getattr(self.messages, f"{method}Response")
        name = f"/addend.v1.Scheduler/{method}"
        return self._channel.unary_unary(name, type(request).SerializeToString, answer.FromString)(request, timeout=20)

    def watch_node(self, member):
        request, update = self.messages.WatchRequest, self.messages.NodeUpdate
        watch = self._channel.unary_stream("/addend.v1.Scheduler/WatchNode", request.SerializeToString, update.FromString)
        return watch(request(member=member))


class Job:
    """A job whose nodes are registered and whose tensor is declared and planned."""

    def __init__(self, options, scheduler, name):
        self.options, self.scheduler, self.name, self.left = options, scheduler, name, False
        self.tokens = []  # by node
        self.members = [self._register(node) for node in range(options.nodes)]
        threading.Thread(target=self._keep_leases, daemon=True).start()
        self.watches = [self.scheduler.watch_node(member) for member in self.members]
        for member in self.members:
            self._say("ReportTrainers", member=member, generation=self.generation, initialised=1)
        tensor = {"name": "flood", "shape": [options.bytes // 4], "op": ACCUMULATE if options.kind == "updates" else 0,
                  "reduction_tree": "tree8" if options.nodes > 8 else "flat"}
        for member in self.members:
            self._say("Declare", member=member, generation=self.generation, tensors=[tensor])
        self._wait_for_plan(self.watches[0])

    def _say(self, method, **fields):
        return self.scheduler.call(method, getattr(self.scheduler.messages, f"{method}Request")(**fields))

    def _register(self, node):
        version = next(int(line.split("=")[1].split(";")[0]) for line in PROTOCOL_VERSION_FILE.read_text().splitlines()
                       if "kProtocolVersion =" in line)
        settings = {"num_nodes": self.options.nodes, "local_size": 1, "partition_bytes": self.options.partition_bytes,
                    "on_node_loss": "fail", "reduction_order": "node", "stall_timeout_s": 3600, "intranode": "auto"}
        incarnation = random.getrandbits(63)
        answer = self._say("RegisterNode", protocol_version=version, incarnation=incarnation, job=self.name, node_rank=node,
                           settings=settings, hostname="flood", control_address="127.0.0.1:1", member_key=KEY)
        self.id, self.generation = answer.job_id, answer.generation
        self.tokens.append(answer.token)
        return self.scheduler.messages.MemberId(job_id=answer.job_id, node_rank=node, incarnation=incarnation, key=KEY)

    def _keep_leases(self):
        while not self.left:
            for member in self.members:
                with contextlib.suppress(Exception):  # continues as long as it can
                    self._say("Heartbeat", member=member, generation=self.generation)
            time.sleep(1)

    def _wait_for_plan(self, updates):
        server = self.plan = None
        self.plan_version = 0
        while not (server and self.plan):
            update = next(updates)
            if update.errors:
                raise SystemExit(update.errors[0].message)
            self.plan_version = update.plan_version or self.plan_version
            server = update.servers[0] if update.servers else server
            self.plan = update.tensors[0] if update.tensors else self.plan
        assert len(set(self.plan.servers)) == 1, "one server is flooded"
        endpoint = next(one for one in server.endpoints if one.transport == "tcp")
        self.address = (endpoint.host, endpoint.port)
        self.shards = sorted(set(self.plan.shards))

    def leave(self):
        self.left = True
        for member in self.members:
            self._say("Leave", member=member)

    def partitions(self, shard):
        """(index, bytes) of the partitions on a shard."""
        size, all_bytes = self.plan.partition_elements * 4, self.options.bytes
        return [(index, min(size, all_bytes - index * size)) for index, one in enumerate(self.plan.shards) if one == shard]

    def header(self, node, type, **fields):
        return wire.encode(type=type, sender=node, job=self.id, generation=self.generation, plan_version=self.plan_version,
                           incarnation=self.members[node].incarnation, **fields)

    def contribution(self, node, index, size, round, **fields):
        op = ACCUMULATE if self.options.kind == "updates" else 0
        return self.header(node, wire.CONTRIBUTION, contributors=1, op=op, partition=self.plan.tensor_id << 32 | index, round=round,
                           payload_bytes=size, uncompressed_bytes=size, **fields)


class Link:
    """A node's link to a shard. It sends an endless sequence of blocks."""

    def __init__(self, job, node, shard, kind):
        self.job, self.node, self.shard, self.kind = job, node, shard, kind
        self.parts = job.partitions(shard)
        self.connect()

    def connect(self):
        member, (host, port) = self.job.members[self.node], self.job.address
        token = self.job.tokens[self.node]
        link = tokens.Link(port, self.job, node=self.node, expires=token.expires_unix_s, secret=token.secret, shard=self.shard,
                           incarnation=member.incarnation, host=host)
        link.open()
        self.socket = link.connection
        self.socket.setblocking(False)
        self.block, self.blocks, self.received, self.expected = memoryview(b""), self.blocks_to_send(), 0, 0
        self.reads = self.kind not in ("unread", "updates")
        self.next_block()

    def round(self, number):
        return b"".join(self.job.contribution(self.node, index, size, number) + bytes(size) for index, size in self.parts)

    def blocks_to_send(self):
        """Yields blocks; None: wait until `expected` bytes of results have arrived."""
        all_results = sum(size + wire.HEADER.size for _, size in self.parts)
        for number in itertools.count(1) if self.kind == "rounds" else ():
            yield self.round(number)
            self.expected += all_results
            yield None
        for number in itertools.count(1) if self.kind == "updates" else ():
            yield self.round(number)
        if self.kind != "early":
            yield self.round(1)
        again = {"early": lambda: self.round(1) if self.node != 0 else None,
                 "unread": lambda: self.round(1),
                 "amplify": lambda: 100 * b"".join(self.job.contribution(self.node, index, 0, 1, flags=EMPTY) for index, _ in self.parts),
                 "tiny": lambda: 1000 * self.job.header(self.node, wire.PING)}[self.kind]()
        while True:
            yield again

    def next_block(self):
        self.block = memoryview(next(self.blocks) or b"")

    def write(self):
        while len(self.block) > 0:
            self.block = self.block[self.socket.send(self.block):]
            if len(self.block) == 0:
                self.next_block()

    def read(self, buffer):
        size = self.socket.recv_into(buffer)
        if size == 0:
            raise ConnectionResetError
        self.received += size
        if len(self.block) == 0 and self.received >= self.expected > 0:
            self.next_block()


def come_and_go(options, scheduler):
    print("flooding", flush=True)
    for number in itertools.count():
        Job(options, scheduler, f"{options.job}{number}").leave()


def flood(job, kind):
    links = [Link(job, node, shard, kind) for node in range(job.options.nodes) for shard in job.shards]
    print("flooding", flush=True)
    selector, buffer = selectors.DefaultSelector(), bytearray(BLOCK)

    def events(link):
        return (selectors.EVENT_READ if link.reads else 0) | (selectors.EVENT_WRITE if len(link.block) or not link.reads else 0)
    for link in links:
        selector.register(link.socket, events(link), link)
    while True:
        for key, ready in selector.select():
            link = key.data
            try:
                if ready & selectors.EVENT_READ:
                    link.read(buffer)
                if ready & selectors.EVENT_WRITE:
                    link.write()
            except BlockingIOError:
                pass
            except OSError:
                selector.unregister(link.socket)
                link.socket.close()
                link.connect()
                selector.register(link.socket, events(link), link)
                continue
            if events(link) != key.events:
                selector.modify(link.socket, events(link), link)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=[*FLOODS, "refused"])
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--job", default="flood")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=8 << 20)
    parser.add_argument("--partition-bytes", type=int, default=256 << 10)
    options = parser.parse_args()
    scheduler = Scheduler(options.scheduler)
    if options.kind == "jobs":
        come_and_go(options, scheduler)
    job = Job(options, scheduler, options.job)
    if options.kind != "refused":
        flood(job, options.kind)


if __name__ == "__main__":
    main()
