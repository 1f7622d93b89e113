"""Trainers that send wrong messages to their agent: the agent survives any message and serves the next trainers."""
import array
import mmap
import os
import pathlib
import random
import socket
import struct

import pytest

from tests.support.cluster import Cluster, PATIENCE
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

# struct Message in lib/client/ipc.h.
MESSAGE = struct.Struct("<IHHIHBBQQQQiIIIiiiiii")
FIELDS = ("magic", "version", "type", "tensor", "flags", "dtype", "op", "request", "round", "offset", "bytes", "priority", "code",
          "dims", "text_bytes", "rank", "size", "local_rank", "local_size", "node_rank", "num_nodes")
MAGIC, VERSION = 0x43444441, 4
INIT, INIT_REPLY, DECLARE, DECLARED, PUSH, RESULT, BELL, TYPES = 1, 3, 4, 5, 6, 7, 25, 25
FLAG_RING = 32
TRIALS = 40


def encode(*tail, **fields):
    values = {"magic": MAGIC, "version": VERSION, **fields}
    return MESSAGE.pack(*(values.get(name, 0) for name in FIELDS)) + b"".join(tail)


def declare(name, dims, **fields):
    return encode(struct.pack(f"<{len(dims)}q", *dims), name, type=DECLARE, dims=len(dims), text_bytes=len(name), **fields)


class Trainer:
    """The only rank of a job with a single node."""

    def __init__(self, cluster):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20 * PATIENCE)
        self.socket.connect(str(cluster.socket(0)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data, fds=()):
        """Sends a message; returns False if the agent has closed the connection."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([data], rights)
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def receive(self, kind):
        """The next message of this type, as a dictionary; None if the agent has closed the connection."""
        while True:
            data, fds, *_ = socket.recv_fds(self.socket, 1 << 14, 4)
            for fd in fds:
                os.close(fd)
            if not data:
                return None
            fields = dict(zip(FIELDS, MESSAGE.unpack(data[:MESSAGE.size])))
            if fields["type"] == kind:
                return fields

    def begin(self):
        """Joins, and declares a tensor; returns its number."""
        self.send(encode(type=INIT, size=1, local_size=1))
        reply = self.receive(INIT_REPLY)
        assert reply is not None and reply["code"] == 0, reply
        self.send(declare(b"honest", [1000], request=7))
        return self.receive(DECLARED)["tensor"]


def works(cluster):
    """Checks that an honest trainer gets the right bits."""
    ranks = running(cluster)
    goes_on(ranks)
    finish(ranks)


def random_message(dice, tensor):
    """A message that would be right except for random faults."""
    edges = [0, 1, 2, 3, 5, 255, 4096, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    fields = {"type": dice.randrange(TYPES + 2), "tensor": tensor, "round": 1}
    bits = {"type": 16, "tensor": 32, "flags": 16, "dtype": 8, "op": 8, "request": 64, "round": 64, "offset": 64, "bytes": 64, "code": 32}
    for name in dice.sample(sorted(bits), dice.randrange(4)):
        fields[name] = dice.choice(edges) % (1 << bits[name])
    dims = [dice.choice([0, 1, 1000, -1, 1 << 20, 1 << 40, (1 << 63) - 1, -(1 << 63)]) for _ in range(dice.choice([0, 0, 1, 2, 64]))]
    text = dice.randbytes(dice.choice([0, 0, 3, 128, 4096]))
    data = encode(struct.pack(f"<{len(dims)}q", *dims), text, dims=len(dims), text_bytes=len(text), **fields)
    kind = dice.randrange(12)
    if kind == 0:
        return data[:dice.randrange(1, len(data) + 1)]
    if kind == 1:
        return data + dice.randbytes(dice.choice([1, 1 << 12, 1 << 15]))
    if kind == 2:
        position = dice.randrange(len(data))
        return data[:position] + dice.randbytes(1) + data[position + 1:]
    return data


def resident_bytes(process):
    return int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(process):
    return len(list(pathlib.Path(f"/proc/{process.pid}/fd").iterdir()))


def test_strangers_who_say_anything_but_their_name_are_let_go(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster:
        ranks = running(cluster)
        for data in [b"x", bytes(88), os.urandom(88), os.urandom(16384), os.urandom(40000), encode(type=PUSH), encode(type=INIT, dims=3),
                     encode(type=INIT, text_bytes=5), encode(type=DECLARE, version=VERSION)]:
            with Trainer(cluster) as stranger:
                stranger.send(data)
                assert stranger.socket.recv(1 << 14) == b"", f"{data[:20]} keeps the connection"
        goes_on(ranks)
        finish(ranks)


def test_a_second_trainer_of_a_rank_changes_nothing(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster:
        ranks = running(cluster)
        with Trainer(cluster) as second:
            for _ in range(100):
                second.send(encode(type=INIT, size=1, local_size=1))
            assert second.receive(INIT_REPLY)["code"] != 0
        goes_on(ranks)
        finish(ranks)


def test_an_admitted_trainer_may_say_anything(tmp_path):
    seed = int(os.environ.get("ADDEND_TEST_SEED", random.randrange(1 << 32)))
    print(f"ADDEND_TEST_SEED={seed}")
    dice = random.Random(seed)
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        agent = cluster.agents[0]
        for _ in range(TRIALS):
            with Trainer(cluster) as trainer:
                tensor = trainer.begin()
                for _ in range(dice.randrange(1, 30)):
                    if not trainer.send(random_message(dice, tensor)):
                        break
            assert agent.returncode is None, agent.tail()
        works(cluster)


def test_descriptors_that_nobody_asked_for_are_closed(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster, open("/dev/null", "rb") as null:
        agent = cluster.agents[0]
        with Trainer(cluster) as trainer:
            tensor = trainer.begin()
            before = descriptors(agent)
            for number in range(1, 101):
                assert trainer.send(encode(type=PUSH, tensor=tensor, round=number), [null.fileno()] * (1 + number % 8))
                assert trainer.receive(RESULT)["round"] == number
            assert descriptors(agent) == before
        for _ in range(20):
            with Trainer(cluster) as stranger:
                stranger.send(b"", [null.fileno()] * 4)
        eventually(lambda: descriptors(agent) <= before, 10 * PATIENCE, "the descriptors of messages without bytes to be closed")
        works(cluster)


def test_a_trainer_that_never_reads_takes_a_bounded_part_of_the_agents_memory(tmp_path):
    """The answer to each refused declaration repeats its name, of up to 4096 bytes."""
    with Cluster(tmp_path, nodes=1) as cluster:
        agent = cluster.agents[0]
        with Trainer(cluster) as trainer:
            trainer.begin()
            before, name = resident_bytes(agent), b"n" * 4000
            refused = declare(name, [-1], request=1)
            for _ in range(60_000):  # 240 MB of answers
                if not trainer.send(refused):
                    break
            else:
                raise AssertionError("the connection is still open")
            assert resident_bytes(agent) - before < 120 << 20
        eventually(lambda: "does not read its socket" in agent.text(), 10 * PATIENCE, "the reason in the agent's log")
        works(cluster)


@pytest.mark.parametrize("dims", [[1 << 62], [1 << 40, 1 << 40], [1 << 44], [-1], [0, 1 << 62]])
def test_a_tensor_of_no_possible_size_is_refused(tmp_path, dims):
    with Cluster(tmp_path, nodes=1) as cluster:
        with Trainer(cluster) as trainer:
            trainer.begin()
            trainer.send(declare(b"huge", dims, request=8))
            reply = trainer.receive(DECLARED)
            assert reply is not None and (reply["code"] != 0 or 0 in dims)
        works(cluster)


def test_garbage_in_the_shared_memory_is_only_garbage(tmp_path):
    """A contribution consists of numbers only, and its segment cannot be made smaller."""
    with Cluster(tmp_path, nodes=1) as cluster:
        with Trainer(cluster) as trainer:
            trainer.send(encode(type=INIT, size=1, local_size=1))
            assert trainer.receive(INIT_REPLY)["code"] == 0
            trainer.send(declare(b"t", [100_000], request=1))
            _, fds, *_ = socket.recv_fds(trainer.socket, 1 << 14, 4)
            contribution, results = fds
            for fd in fds:
                for size in (0, 1, 1 << 30):
                    with pytest.raises(OSError):
                        os.ftruncate(fd, size)
            os.pwrite(contribution, os.urandom(400_000), 0)
            with pytest.raises(OSError):
                os.pwrite(results, b"x", 0)
            trainer.send(encode(type=PUSH, tensor=1, round=1))
            for fd in fds:
                os.close(fd)
            eventually(lambda: cluster.agents[0].returncode is None, 1)
        works(cluster)


def test_garbage_in_the_queues_harms_the_trainer_alone(tmp_path):
    seed = int(os.environ.get("ADDEND_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"ADDEND_SEED={seed}")
    draw = random.Random(seed)
    with Cluster(tmp_path, nodes=1) as cluster:
        for _ in range(TRIALS):
            with Trainer(cluster) as trainer:
                trainer.send(encode(type=INIT, size=1, local_size=1, flags=FLAG_RING))
                _, fds, *_ = socket.recv_fds(trainer.socket, 1 << 14, 4)
                while not fds:  # progress comes before the reply
                    _, fds, *_ = socket.recv_fds(trainer.socket, 1 << 14, 4)
                (queues,) = fds
                with pytest.raises(OSError):
                    os.ftruncate(queues, 0)
                with mmap.mmap(queues, os.fstat(queues).st_size) as memory:
                    os.close(queues)
                    trainer.send(declare(b"t", [1000], request=1))
                    for _ in range(20):
                        at = draw.choice((0, 128, 256, draw.randrange(len(memory) - 64)))
                        length = draw.choice((1, 8, 64))
                        memory[at:at + length] = draw.choice((draw.randbytes(length), bytes(length), b"\xff" * length))
                        if not trainer.send(encode(type=BELL)):
                            break
            assert cluster.agents[0].returncode is None
        works(cluster)
