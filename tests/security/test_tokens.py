"""Admission to a summation server's data path: only nodes with a token of the job's present generation.

The tests act as strangers, and as nodes of their own job, on a server that sums for another job all the while.
"""
import contextlib
import os
import random
import signal
import socket
import struct
import time

import pytest

from tests.support import tokens, wire
from tests.support.cluster import Cluster, PATIENCE, SANITIZED, run_binary
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running
from tests.support.scrape import scrape

SKEW_S = 300  # the allowed difference between clocks
FRAMES = 100_000 if SANITIZED else 1_000_000


@contextlib.contextmanager
def training(tmp_path, **options):
    """A cluster with a job that trains before, during and after the test; its trainers check the results."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, store=f"sqlite:{tmp_path}/store.db", **options) as cluster:
        ranks = running(cluster)
        yield cluster, tokens.Job(tmp_path / "store.db")
        goes_on(ranks)
        finish(ranks)
        assert all(process.returncode is None for process in [cluster.scheduler, *cluster.servers, *cluster.agents.values()])


def rejected(server):
    """The number of rejected links by reason."""
    return {dict(labels)["reason"]: value for (name, labels), value in scrape(server).items()
            if name == "addend_summation_links_rejected_total"}


@contextlib.contextmanager
def other_job(tmp_path, cluster, harms_itself=False):
    """A job of two nodes that trains on the same server, as the scheduler's database has it."""
    with Cluster(tmp_path, nodes=2, job="other", beside=cluster) as other:
        ranks = running(other)
        yield tokens.Job(tmp_path / "store.db", "other")
        if not harms_itself:
            finish(ranks)


@contextlib.contextmanager
def counted(server, reason, times=1):
    """Checks that `times` links are rejected within the context, all for this reason."""
    before = rejected(server)
    yield
    wanted = {**before, reason: before[reason] + times}
    eventually(lambda: rejected(server) == wanted, 10 * PATIENCE, f"{times} more links refused because of {reason}; before: {before}")


def refused(answer, words):
    fields, payload = answer
    assert fields is not None and fields["type"] == wire.GOAWAY, (fields, payload)
    assert words in payload.decode(), payload


def test_who_has_a_token_of_the_job_is_let_in_and_learns_that_the_server_is_the_real_one(tmp_path):
    """Shows that the other tests' links are refused for their faults. The link replaces the node whose token it has."""
    with training(tmp_path) as (cluster, job), tokens.Link(cluster.servers[0].ports["data"], job) as link:
        link.open()


def test_wrong_expired_and_foreign_tokens_are_refused(tmp_path):
    with training(tmp_path) as (cluster, job), other_job(tmp_path, cluster) as foreign:
        server = cluster.servers[0]
        port = server.ports["data"]
        now = int(time.time())
        with counted(server, "wrong_token"), tokens.Link(port, job, secret=os.urandom(32)) as link:
            link.hello()
            refused(link.prove(), "not the token of node 0")
        with counted(server, "wrong_token"), tokens.Link(port, job, secret=tokens.token(foreign.key, job.id, 1, 0, now + 600), expires=now + 600) as link:
            link.hello()
            refused(link.prove(), "not the token")
        with counted(server, "wrong_token"), tokens.Link(port, job, node=1, secret=tokens.token(job.key, job.id, 1, 0, now + 600), expires=now + 600) as link:
            link.hello()
            refused(link.prove(), "not the token of node 1")
        with counted(server, "wrong_token"), tokens.Link(port, job, expires=now + 10**6, secret=tokens.token(job.key, job.id, 1, 0, now + 600)) as link:
            link.hello()
            refused(link.prove(), "not the token")
        with counted(server, "expired_token"), tokens.Link(port, job, expires=now - SKEW_S - 60) as link:
            link.hello()
            refused(link.prove(), "has expired")
        for generation in (0, job.generation + 1):
            with counted(server, "not_a_member"), tokens.Link(port, job, generation=generation) as link:
                link.hello()
                refused(link.prove(), "does not belong to job")
        with counted(server, "not_a_member"), tokens.Link(port, job, node=2) as link:
            link.hello()
            refused(link.prove(), "does not belong to job")
        foreign.id = 77
        with counted(server, "unknown_job"), tokens.Link(port, foreign) as link:
            refused(link.hello(), "not known here")


def test_without_a_token_nothing_is_taken(tmp_path):
    with training(tmp_path) as (cluster, job):
        server = cluster.servers[0]
        port = server.ports["data"]
        for kind in (wire.CONTRIBUTION, wire.RESULT, wire.ACK):
            with counted(server, "no_token"), tokens.Link(port, job) as link:
                link.send(kind, bytes(4) if kind != wire.ACK else b"", partition=1 << 32, round=1)
                refused(link.receive(), "begins with a HELLO")
        with counted(server, "no_token"), tokens.Link(port, job) as link:  # between HELLO and PROOF
            link.hello()
            link.send(wire.CONTRIBUTION, bytes(4), partition=1 << 32, round=1)
            refused(link.receive(), "begins with a HELLO")
        with counted(server, "malformed"), tokens.Link(port, job) as link:  # the job's key itself, as former versions sent it
            link.send(wire.HELLO, job.key)
            refused(link.receive(), "32 bytes")


def test_a_handshake_that_was_overheard_opens_nothing(tmp_path):
    with training(tmp_path) as (cluster, job):
        server = cluster.servers[0]
        with tokens.Link(server.ports["data"], job) as link:
            link.open()
            overheard = link.encode(wire.HELLO, struct.pack("<Q", link.expires) + link.nonce), link.proof()
        with counted(server, "wrong_token"), tokens.Link(server.ports["data"], job, expires=link.expires) as replay:
            replay.connection.sendall(overheard[0])
            fields, _ = replay.receive()
            assert fields["type"] == wire.CHALLENGE
            refused(replay.prove(overheard[1]), "not an answer to this server's challenge")


def test_truncated_and_oversized_frames_close_their_own_link(tmp_path):
    with training(tmp_path) as (cluster, job):
        server = cluster.servers[0]
        port = server.ports["data"]
        for payload_bytes in (1 << 30, 257, 41):
            with counted(server, "malformed"), tokens.Link(port, job) as link:
                link.connection.sendall(wire.encode(type=wire.HELLO, job=job.id, generation=1, payload_bytes=payload_bytes, uncompressed_bytes=payload_bytes))
                refused(link.receive(), "too long")
        before = rejected(server)
        for size in (1, 95, 96, 120):  # then the end
            with tokens.Link(port, job) as link:
                hello = link.encode(wire.HELLO, struct.pack("<Q", link.expires) + link.nonce)
                link.connection.sendall(hello[:size])
        with tokens.Link(port, job) as link:
            link.open()  # the server continues with the next link
            link.connection.sendall(link.encode(wire.CONTRIBUTION, bytes(4), partition=1 << 32, round=1)[:98])
        assert rejected(server) == before


def test_a_member_of_one_job_cannot_reach_anothers_partitions(tmp_path):
    """A link acts for the job, generation and node that it has proved, not for those in its frames."""
    with training(tmp_path) as (cluster, job), other_job(tmp_path, cluster) as mine:
        server = cluster.servers[0]
        for forged in (dict(job=job.id), dict(generation=mine.generation + 1), dict(sender=1)):
            with counted(server, "malformed"), tokens.Link(server.ports["data"], mine) as link:
                link.open(link.encode(wire.CONTRIBUTION, bytes(4), **{**dict(partition=1 << 32, round=1), **forged}))
                refused(link.receive(), "another job, generation or node")
        with tokens.Link(server.ports["data"], mine) as link:  # in its own job there is no such partition
            link.open(link.encode(wire.CONTRIBUTION, bytes(4), partition=99 << 32, round=1) + link.encode(wire.PING))
            fields, _ = link.receive()
            assert fields["type"] == wire.PING, "it was dropped, and nothing else happened"


def random_frames(source, count):
    """Headers with correct checksums and mostly wrong fields; some frames are random bytes."""
    frames = []
    for _ in range(count):
        if source.random() < 0.2:
            frames.append(source.randbytes(wire.HEADER.size))
            continue
        frames.append(wire.HEADER.pack(
            wire.MAGIC, wire.VERSION, source.randrange(20), source.randrange(8), source.randrange(8), 0, source.randrange(64),
            source.randrange(4), source.randrange(4), source.randrange(4), source.randrange(4), source.randrange(4), source.randrange(4),
            source.choice((0, 1 << 32, source.randrange(1 << 64))), source.randrange(5), 0, source.choice((0, 4, 40, 1 << 20, 1 << 29)),
            0, 0, source.randrange(4), 0))
    return frames


def with_checksums(frames):
    table = CRC_TABLE
    out = bytearray()
    for frame in frames:
        crc = 0xFFFFFFFF
        for byte in frame[:-4]:
            crc = crc >> 8 ^ table[(crc ^ byte) & 255]
        out += frame[:-4] + struct.pack("<I", crc ^ 0xFFFFFFFF)
    return bytes(out)


def _crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


CRC_TABLE = _crc_table()


def memory_kib(process, what):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(what))


@pytest.mark.parametrize("as_member", [False, True], ids=["strangers", "members of another job"])
def test_random_frames_reach_nobody(tmp_path, as_member):
    """A million frames; the server's peak memory stays the same, except for the links themselves."""
    seed = int(os.environ.get("ADDEND_TEST_SEED", random.randrange(1 << 32)))
    print(f"ADDEND_TEST_SEED={seed}")
    source = random.Random(seed)
    pool = with_checksums(random_frames(source, 4096))
    size = wire.HEADER.size
    with training(tmp_path) as (cluster, _), other_job(tmp_path, cluster, harms_itself=as_member) as mine:
        server = cluster.servers[0]
        peak = memory_kib(server, "VmHWM:")
        sent, links = 0, 0
        while sent < FRAMES:
            at = source.randrange(4096 - 1024)
            burst = pool[at * size:(at + 1024) * size]
            with tokens.Link(server.ports["data"], mine) as link:
                links += 1
                try:
                    if as_member:
                        link.open()
                    link.connection.sendall(burst)
                    link.connection.shutdown(socket.SHUT_WR)
                    while link.connection.recv(1 << 16):
                        pass
                except OSError:  # the server closed the link meanwhile
                    pass
            sent += 1024
        grown = memory_kib(server, "VmHWM:") - peak
        assert grown < 32 * 1024 or SANITIZED, f"{links} links made the server {grown} KiB larger"
        assert sum(rejected(server).values()) >= links / 2


def secret_file(folder, name, text):
    path = folder / name
    path.write_text(text + "\n")
    return f"--job-secret-file={path}"


def test_a_job_with_a_secret_lets_in_only_agents_that_know_it(tmp_path):
    own, wrong = (secret_file(tmp_path, name, f"the secret of {name} team") for name in ("this", "another"))
    with Cluster(tmp_path, nodes=2, cpu_servers=1, agent_flags=[own]) as cluster:
        ranks = running(cluster)
        for flags, words in (([], "brings no secret"), ([wrong], "brings another secret")):
            result = run_binary("addend-agent", f"--scheduler={cluster.scheduler_address}", "--job=job", "--node-rank=1", "--num-nodes=2",
                                "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=off",
                                f"--socket={tmp_path}/stranger.sock", *flags)
            assert result.returncode == 64
            assert words in result.stderr.splitlines()[-1] and "--job-secret-file" in result.stderr.splitlines()[-1]
        goes_on(ranks)
        finish(ranks)


def test_cpu_servers_bring_the_secret_that_the_scheduler_asks_for(tmp_path):
    path = tmp_path / "servers"
    path.write_text("whoever is a server sees gradients")
    flag = f"--server-secret-file={path}"
    with Cluster(tmp_path, nodes=1, cpu_servers=1, scheduler_flags=[flag], summation_flags=[flag]) as cluster:
        result = run_binary("addend-summation", f"--scheduler={cluster.scheduler_address}", "--listen=127.0.0.1:0",
                            "--data-listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=off")
        assert result.returncode == 64 and "has brought no secret" in result.stderr
        finish(running(cluster))


def test_a_server_is_drained_by_itself_or_by_who_knows_the_servers_secret(tmp_path):
    path = tmp_path / "servers"
    path.write_text("whoever is a server sees gradients")
    flag = f"--server-secret-file={path}"
    with Cluster(tmp_path, nodes=2, cpu_servers=2, scheduler_flags=[flag], summation_flags=[flag]) as cluster:
        ranks = running(cluster)
        drain = ["addendctl", "drain", "1", f"--scheduler={cluster.scheduler_address}"]
        refused = run_binary(*drain)
        assert refused.returncode == 64 and "give addendctl drain the --server-secret-file" in refused.stderr, refused
        assert not any(server["draining"] for server in cluster.addendctl("status")["servers"])
        assert run_binary(*drain, flag).returncode == 0
        cluster.servers[1].signal(signal.SIGTERM)
        assert cluster.servers[1].wait(30 * PATIENCE) == 0
        assert "drained" in cluster.servers[1].text()
        goes_on(ranks)
        finish(ranks)


@pytest.mark.parametrize("text, words", [("short", "can be guessed"), (None, "cannot be read")])
def test_a_secret_that_is_none_is_bad_configuration(tmp_path, text, words):
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
    result = run_binary("addend-agent", "--job=job", f"--job-secret-file={path}")
    assert result.returncode == 64 and words in result.stderr.splitlines()[-1] and str(path) in result.stderr


def test_tokens_are_renewed_while_the_job_runs(tmp_path):
    """Tokens last for two seconds. A server that joins later is reached with a new token."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=["--token-lifetime=2s"]) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        time.sleep(3)
        cluster.await_ports(cluster.start_summation())
        eventually(lambda: "is in force" in cluster.scheduler.text(), 60 * PATIENCE, "a share for the server that has joined")
        goes_on(ranks)
        finish(ranks)
