"""Each failure: a clear sentence, the documented exit status or typed error, within 10 s, on every rank."""
import pathlib
import re
import socket
import time

import pytest

from tests.support import netns
from tests.support.cluster import Cluster, PATIENCE, run_binary
from tests.support.grpc_process import Proxy
from tests.support.processes import eventually

SERVICES = ("addend-scheduler", "addend-summation", "addend-agent")
AGENT = ["--scheduler=127.0.0.1:9", "--job=j", "--node-rank=0", "--num-nodes=1", "--local-size=1"]
NEEDED = {
    "addend-scheduler": ["--store=memory"],
    "addend-summation": ["--scheduler=127.0.0.1:9"],
    "addend-agent": AGENT,
}
ANYWHERE = ["--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=127.0.0.1:0"]
LIMIT = 10 * PATIENCE


def last_sentence(result, *, status):
    """The line in which a binary reports its reason."""
    assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
    lines = [line for line in result.stderr.strip().splitlines() if re.match(r"(addend[\w-]*): ", line)]
    assert lines, f"no sentence in: {result.stderr}"
    assert "\n" not in lines[-1] and len(lines[-1]) < 600
    return lines[-1]


# ---- the start of a binary ----
@pytest.mark.parametrize("binary", [*SERVICES, "addendctl", "addend-bench"])
def test_unknown_flag(binary):
    command = {"addendctl": ["status"], "addend-bench": ["push-pull"]}.get(binary, [])
    assert "frobnicate" in last_sentence(run_binary(binary, *command, "--frobnicate=1"), status=64)


@pytest.mark.parametrize("binary,flag", [
    ("addend-scheduler", "--listen=nonsense"), ("addend-scheduler", "--lease=soon"), ("addend-scheduler", "--store=floppy:a"),
    ("addend-summation", "--shards=banana"), ("addend-summation", "--shards=100000"), ("addend-summation", "--memory-limit=much"),
    ("addend-summation", "--bandwidth=fast"), ("addend-summation", "--transport=pigeon"), ("addend-summation", "--rdma-traffic-class=256"),
    ("addend-agent", "--rdma-gid-index=-2"), ("addend-agent", "--rdma-spin=2s"), ("addend-agent", "--node-rank=1"),
    ("addend-agent", "--num-nodes=0"), ("addend-agent", "--local-size=-1"), ("addend-agent", "--partition-bytes=0"),
    ("addend-agent", "--on-node-loss=cry"), ("addend-agent", "--scheduler=nowhere"), ("addend-agent", "--colocated-summation=maybe"),
    ("addend-agent", "--intranode=sideways"), ("addend-agent", "--topology=/no/such.xml")])
def test_bad_value(tmp_path, binary, flag):
    socket_flag = [f"--socket={tmp_path}/a.sock"] if binary == "addend-agent" else []
    data = ["--data-listen=127.0.0.1:0"] if binary != "addend-scheduler" else []
    sentence = last_sentence(run_binary(binary, *NEEDED[binary], *ANYWHERE, *socket_flag, *data, flag), status=64)
    name, value = flag[2:].split("=")
    assert name in sentence or name.replace("-", "_") in sentence or name.replace("-", " ") in sentence
    assert value in sentence


def test_bad_value_from_the_environment_names_the_variable():
    result = run_binary("addend-summation", *NEEDED["addend-summation"], *ANYWHERE, env={"ADDEND_SHARDS": "banana"})
    assert "ADDEND_SHARDS" in last_sentence(result, status=64)


@pytest.mark.parametrize("flag", ["listen", "http", "health-listen"])
def test_port_taken_by_another_scheduler(flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = last_sentence(
            run_binary("addend-scheduler", "--store=memory", *ANYWHERE, f"--{flag}=127.0.0.1:{port}"), status=64)
        assert str(port) in sentence


@pytest.mark.parametrize("kind", ["summation", "agent"])
@pytest.mark.parametrize("flag", ["listen", "data-listen", "http"])
def test_port_taken(tmp_path, kind, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken, Cluster(tmp_path, nodes=0) as cluster:
        port = taken.getsockname()[1]
        start = time.monotonic()
        process = (cluster.start_summation(f"--{flag}=127.0.0.1:{port}") if kind == "summation"
                   else start_agent_of(cluster, 0, 1, f"--{flag}=127.0.0.1:{port}"))
        # The harness's own --http comes later on the command line, and the last value counts.
        if flag == "http":
            process.kill()
            flags = [f for f in process.command[1:] if f != "--http=127.0.0.1:0"]
            process = cluster.start(f"{kind}.again", [process.command[0], *flags])
        assert process.wait(LIMIT) == 64 and time.monotonic() - start < LIMIT
        assert str(port) in process.tail(1)


def start_agent_of(cluster, node, nodes, *flags, name=None):
    cluster.nodes, before = nodes, cluster.nodes
    try:
        return cluster.start_agent(node, *flags, name=name)
    finally:
        cluster.nodes = before


@pytest.mark.parametrize("binary", ["addend-summation", "addend-agent"])
def test_scheduler_unreachable(tmp_path, binary):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    more = ["--data-listen=127.0.0.1:0", f"--scheduler=127.0.0.1:{port}", "--connect-timeout=4s"]
    if binary == "addend-agent":
        more.append(f"--socket={tmp_path}/a.sock")
    start = time.monotonic()
    result = run_binary(binary, *NEEDED[binary], *ANYWHERE, *more)
    assert 3 < time.monotonic() - start < LIMIT
    assert str(port) in last_sentence(result, status=76)
    assert result.stderr.count(str(port)) >= 2, "it says meanwhile that it waits"


@pytest.mark.parametrize("kind", ["summation", "agent", "agent without a server"])
def test_member_of_another_protocol_version(tmp_path, kind):
    """protocol_version is field 1 of both registrations, so the message starts with its tag and value."""
    with Cluster(tmp_path, nodes=0) as cluster, Proxy(cluster.scheduler_address, b"\x08\x01", b"\x08\x02") as proxy:
        scheduler = f"--scheduler=127.0.0.1:{proxy.port}"
        process = {
            "summation": lambda: cluster.start_summation(scheduler),
            "agent": lambda: start_agent_of(cluster, 0, 1, scheduler),
            "agent without a server": lambda: start_agent_of(cluster, 0, 1, scheduler, "--colocated-summation=false")}[kind]()
        assert process.wait(LIMIT) == 66
        assert "version 2" in process.tail(1) and "version 1" in process.tail(1)


@pytest.mark.skipif(pathlib.Path("/sys/class/infiniband").exists(), reason="this machine has RDMA: tests/rdma covers it")
@pytest.mark.parametrize("binary", ["addend-summation", "addend-agent"])
def test_rdma_on_a_machine_without_rdma(tmp_path, binary):
    """Without a request for RDMA, a line says so; with --transport=rdma it is an error."""
    socket_flag = [f"--socket={tmp_path}/s"] if binary == "addend-agent" else []
    command = [binary, *NEEDED[binary], *ANYWHERE, *socket_flag, "--data-listen=127.0.0.1:0", "--connect-timeout=1s"]
    result = run_binary(*command)
    assert last_sentence(result, status=76)
    assert len(re.findall("the data path is TCP, without RDMA: this machine has no RDMA device", result.stderr)) == 1, result.stderr
    assert "no RDMA device" in last_sentence(run_binary(*command, "--transport=rdma"), status=64)


def test_addendctl_without_scheduler():
    assert "127.0.0.1:9" in last_sentence(run_binary("addendctl", "status", "--scheduler=127.0.0.1:9"), status=76)


def test_trainer_without_agent(tmp_path):
    with Cluster(tmp_path, nodes=0) as cluster:
        cluster.nodes = 1
        start = time.monotonic()
        outcome, = cluster.run_ranks("attempt.py", env={"ADDEND_CONNECT_TIMEOUT": 7})
        assert time.monotonic() - start < LIMIT
        assert outcome.result["init"]["code"] == 76 and "agent0.sock" in outcome.result["init"]["text"]
        assert "agent0.sock" in outcome.log, "it says meanwhile that it waits"


def test_a_start_that_takes_too_long_names_the_missing_node(tmp_path):
    words = "waiting for node 1 of 2 (node ranks 0..1): agent connected, trainer not initialised"
    with Cluster(tmp_path, nodes=2, agent_flags=["--stall-timeout=3s"]) as cluster:
        early = cluster.start_ranks("attempt.py", ranks=[0])
        eventually(lambda: words in cluster.addendctl("why", "job")["waits_for"], LIMIT, "addendctl why naming node 1")
        outcome, = early.join(expect=None)
        assert outcome.result["init"]["error"] == "StalledError"
        assert words in outcome.result["init"]["text"] and "--stall-timeout=3s" in outcome.result["init"]["text"]
        assert words in outcome.log, "it says meanwhile for whom it waits"
        # The failed start leaves nothing behind.
        cluster.run_ranks("attempt.py")


# ---- disagreement ----
def agreed_errors(results, call="push_pull"):
    for outcome in results:
        report = outcome.result[call]
        assert report["error"] is not None, f"rank {outcome.rank} saw no error"
        assert report["seconds"] < LIMIT
    return [outcome.result[call] for outcome in results]


@pytest.mark.parametrize("other,words", [
    ({"shape": [5]}, ["4", "5"]),
    ({"shape": [2, 2]}, ["4", "2"]),
    ({"dtype": "float64"}, ["float32", "float64"]),
    ({"op": "Average"}, ["sum", "average"])])
def test_one_name_declared_differently_by_two_nodes(tmp_path, other, words):
    with Cluster(tmp_path, nodes=2, local_size=2) as cluster:
        results = cluster.run_ranks("attempt.py", {"together": True, "name": "weights/ü", "rank": {"2": other, "3": other}})
        for error in agreed_errors(results):
            assert error["error"] == "MismatchError" and error["code"] == 65
            assert "weights/ü" in error["text"] and "node 0" in error["text"] and "node 1" in error["text"]
            assert all(word in error["text"].lower() for word in words), error["text"]


def test_one_name_declared_differently_by_two_local_ranks(tmp_path):
    with Cluster(tmp_path, nodes=2, local_size=2) as cluster:
        for error in agreed_errors(cluster.run_ranks(
                "attempt.py", {"together": True, "rank": {"1": {"shape": [7]}}})):
            assert error["error"] == "MismatchError" and "'w'" in error["text"]


@pytest.mark.parametrize("flag,setting", [
    ("--partition-bytes=8KiB", "partition"), ("--stall-timeout=7s", "stall.timeout"), ("--num-nodes=3", "num.nodes"), ("--audit-one-in=7", "audit.one.in"),
    ("--intranode=copy", "intranode"), ("--deterministic-intranode=false", "deterministic.intranode"),
    ("--local-size=2", "local.size")])
def test_job_settings_that_differ(tmp_path, flag, setting):
    with Cluster(tmp_path, nodes=0) as cluster:
        first = start_agent_of(cluster, 0, 2)
        cluster.await_ports(first)
        second = start_agent_of(cluster, 1, 2, flag)
        assert second.wait(LIMIT) == 65
        sentence = second.tail(1)
        assert re.search(setting, sentence) and "node 0" in sentence and "node 1" in sentence
        assert first.returncode is None


def test_two_agents_of_one_node_rank(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster:
        second = cluster.start_agent(0, f"--socket={cluster.folder}/second.sock", name="second")
        assert second.wait(LIMIT) == 64
        assert "node" in second.tail(1) and "'job'" in second.tail(1)
        cluster.run_ranks("attempt.py")


def test_second_agent_on_one_socket(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster:
        second = cluster.start_agent(0, "--job=other", name="second")
        assert second.wait(LIMIT) in (64, 77)
        assert "agent0.sock" in second.tail(1)
        cluster.run_ranks("attempt.py")


def test_loopback_is_never_used_for_another_machine(tmp_path):
    if reason := netns.unavailable():
        pytest.skip(reason)
    with netns.Network(2, "1gbit") as network, Cluster(tmp_path, nodes=0, network=network) as cluster:
        cluster.nodes = 2
        for node, flags in ((0, ["--advertise=127.0.0.1"]), (1, [])):
            cluster.await_ports(cluster.start_agent(node, *flags))
        for error in agreed_errors(cluster.run_ranks("attempt.py", {"shape": [1_000_000]})):
            assert error["code"] == 64 and "127.0.0.1" in error["text"] and "--advertise" in error["text"]
            assert "node 0" in error["text"], "the machine that is to blame"


# ---- trainers ----
def test_trainer_of_another_job(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster:
        start = time.monotonic()
        stranger, = cluster.run_ranks("attempt.py", env={"ADDEND_JOB": "stranger"})
        assert time.monotonic() - start < LIMIT
        assert stranger.result["init"]["error"] and stranger.result["init"]["code"] in (64, 65)
        assert "stranger" in stranger.result["init"]["text"] and "job" in stranger.result["init"]["text"]
        cluster.run_ranks("attempt.py")


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": 3}, {"LOCAL_WORLD_SIZE": 2, "WORLD_SIZE": 2}, {"RANK": 5, "WORLD_SIZE": 9}])
def test_trainer_with_the_wrong_number_of_ranks(tmp_path, variables):
    with Cluster(tmp_path, nodes=1) as cluster:
        ranks = cluster.start_ranks("attempt.py", env={**variables})
        ranks.processes[0].wait(LIMIT)
        report = (list(ranks.folder.glob("result.*.json")))
        assert report and '"code": 6' in report[0].read_text(), report


def test_too_many_trainers(tmp_path):
    with Cluster(tmp_path, nodes=1) as cluster:
        first = cluster.start_ranks("attempt.py", {"calls": ["gate here", "push_pull"]})
        first.wait_at("here")
        start = time.monotonic()
        second, = cluster.run_ranks("attempt.py")
        assert time.monotonic() - start < LIMIT
        assert second.result["init"]["code"] in (64, 65) and "rank 0" in second.result["init"]["text"]
        first.open("here")
        assert first.join()[0].result["push_pull"]["error"] is None


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_WORLD_SIZE"])
def test_malformed_variable(tmp_path, variable):
    with Cluster(tmp_path, nodes=1) as cluster:
        outcome, = cluster.run_ranks("bad_variable.py", env={"BAD_VARIABLE": variable})
        assert outcome.result["init"]["code"] == 64 and variable in outcome.result["init"]["text"]


def test_push_pull_after_shutdown(tmp_path):
    with Cluster(tmp_path, nodes=2) as cluster:
        results = cluster.run_ranks("attempt.py", {"calls": ["push_pull", "shutdown", "late"]})
        for outcome in results:
            assert outcome.result["push_pull"]["error"] is None and outcome.result["shutdown"]["error"] is None
        for error in agreed_errors(results, "late"):
            assert error["error"] == "Error" and error["code"] == 71


# ---- memory ----
def test_server_too_small_for_the_job(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, summation_flags=["--memory-limit=1MiB"],
                 agent_flags=["--colocated-summation=false"]) as cluster:
        results = cluster.run_ranks("attempt.py", {"shape": [4_000_000]})
        for error in agreed_errors(results):
            assert error["code"] == 72 and "'w'" in error["text"]
            assert re.search(r"\d", error["text"]), "it names what is needed and what is free"


def test_a_refused_tensor_is_the_reason_for_late_ranks_too(tmp_path):
    """The ranks that learn the reason first end; a rank that comes to the tensor later must still learn the reason."""
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=1, summation_flags=["--memory-limit=1MiB"],
                 agent_flags=["--colocated-summation=false"]) as cluster:
        ranks = cluster.start_ranks("attempt.py", {
            "shape": [4_000_000], "calls": ["gate ready", "push_pull"],
            "rank": {"3": {"calls": ["gate ready", "gate late", "push_pull"]}}})
        ranks.wait_at("ready")
        ranks.open("ready")
        for rank in (0, 1, 2):
            ranks.processes[rank].wait(LIMIT)
        ranks.open("late")
        for error in agreed_errors(ranks.join()):
            assert error["code"] == 72 and "'w'" in error["text"]


def test_no_summation_server_at_all(tmp_path):
    with Cluster(tmp_path, nodes=2, agent_flags=["--colocated-summation=false"]) as cluster:
        for error in agreed_errors(cluster.run_ranks("attempt.py")):
            assert "addend-summation" in error["text"]


# ---- death ----
@pytest.mark.parametrize("victim", ["trainer", "agent"])
def test_death_reaches_every_rank(tmp_path, victim):
    with Cluster(tmp_path, nodes=3, local_size=2, cpu_servers=1, scheduler_flags=["--lease=3s"]) as cluster:
        ranks = cluster.start_ranks("steps.py", {"steps": 100000, "gate": "running"})
        ranks.wait_at("running")
        ranks.open("running")
        time.sleep(0.3)
        killed = {"trainer": ranks.processes[5], "agent": cluster.agents[2]}[victim]
        start = time.monotonic()
        killed.kill()
        survivors = [outcome for outcome in ranks.join(LIMIT, expect=None) if outcome.result is not None]
        assert time.monotonic() - start < LIMIT
        assert len(survivors) == {"trainer": 5, "agent": 6}[victim]
        for outcome in survivors:
            assert outcome.result["error"] == "PeerLostError" and outcome.result["code"] == 75, outcome.result
        told = [outcome.result["text"] for outcome in survivors if outcome.rank < 4]
        names = {"trainer": "rank 5", "agent": "node 2"}[victim]
        assert all(names in text for text in told), told


def test_job_starts_over_after_a_lost_trainer(tmp_path):
    with Cluster(tmp_path, nodes=2, scheduler_flags=["--lease=3s"]) as cluster:
        ranks = cluster.start_ranks("steps.py", {"steps": 100000, "gate": "running"})
        ranks.wait_at("running")
        ranks.open("running")
        ranks.processes[1].kill()
        ranks.join(LIMIT, expect=None)
        for outcome in cluster.run_ranks("steps.py", {"steps": 5}):
            assert outcome.result["error"] is None


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_a_node_that_does_not_push_is_an_error_on_every_rank(tmp_path, rounds_before):
    """The node has not even declared the tensor, or it stops after a round."""
    calls = ["push_pull"] * rounds_before
    with Cluster(tmp_path, nodes=3, agent_flags=["--stall-timeout=3s"]) as cluster:
        ranks = cluster.start_ranks("attempt.py", {
            "calls": [*calls, "push_pull"], "rank": {"2": {"calls": [*calls, "gate sleep", "push_pull"]}}})
        for rank in (0, 1):
            ranks.processes[rank].wait(LIMIT)
        ranks.open("sleep")
        for outcome in ranks.join(LIMIT):
            report = outcome.result["push_pull"]
            assert report["error"] == "StalledError" and report["code"] == 78 and "'w'" in report["text"]


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_addendctl_why_names_the_ranks_that_a_job_waits_for(tmp_path, rounds_before):
    calls = ["push_pull"] * rounds_before
    late = {"calls": [*calls, "gate sleep", "push_pull"]}
    with Cluster(tmp_path, nodes=3, local_size=2, cpu_servers=1) as cluster:
        ranks = cluster.start_ranks("attempt.py", {
            "calls": [*calls, "gate there", "push_pull"], "rank": {"3": late, "4": late, "5": late}})
        ranks.open("there")

        def asked():
            answer = cluster.addendctl("why", "job")
            late = answer["nodes"] == [2] and answer["ranks"] == [3] and answer["round"] == rounds_before + 1
            return late and answer
        answer = eventually(asked, 10 * PATIENCE, "node 2 and rank 3 in the roll-call")
        assert answer["tensor"] == "w" and answer["open_s"] > 0
        assert "node 2" in answer["waits_for"] and "rank 3" in answer["waits_for"]
        ranks.open("sleep")
        ranks.join()
    result = run_binary("addendctl", "why")
    assert "JOB" in last_sentence(result, status=64)


def test_a_local_rank_that_does_not_push_is_named(tmp_path):
    with Cluster(tmp_path, local_size=2, agent_flags=["--stall-timeout=3s"]) as cluster:
        ranks = cluster.start_ranks("attempt.py", {"rank": {"1": {"calls": ["push_pull", "gate sleep", "push_pull"]}},
                                                   "calls": ["push_pull", "push_pull"]})
        ranks.processes[0].wait(LIMIT)
        ranks.open("sleep")
        for outcome in ranks.join(LIMIT):
            report = outcome.result["push_pull"]
            assert report["error"] == "StalledError" and "rank 1" in report["text"]
