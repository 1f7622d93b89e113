"""Texts that members choose (names of jobs, hosts and tensors, reasons, incidents) cannot forge a line of a service's log or of a terminal."""
import subprocess

from tests.support.cluster import Cluster, PATIENCE
from tests.support.hand_made import Caller
from tests.support.processes import eventually

FORGED = "2026-01-01T00:00:00.000 info [scheduler] all is well"
NAME = f"a\n{FORGED}\x1b[2J\u202e"
SHOWN = f"a\\n{FORGED}\\x1b[2J\\u202e"


def test_a_name_with_line_feeds_is_one_line_of_the_log(tmp_path):
    with Cluster(tmp_path, nodes=1, job=NAME) as cluster:
        eventually(lambda: SHOWN in cluster.agents[0].text(), 20 * PATIENCE, "the name in the agent's log")
        eventually(lambda: SHOWN in cluster.scheduler.text(), 20 * PATIENCE, "the name in the scheduler's log")
        for process in (cluster.scheduler, cluster.agents[0]):
            text = process.log.read_bytes().decode()
            assert FORGED not in text.splitlines()
            assert not any(line.startswith(FORGED) for line in text.split("\n"))
            assert "\x1b" not in text and "\u202e" not in text


def test_whatever_a_member_says_is_one_line_of_the_log_and_of_addendctl(tmp_path):
    with Cluster(tmp_path, nodes=0, scheduler_flags=["--lease=30s"]) as cluster:
        with Caller(cluster.scheduler_address) as caller:
            nodes = [caller.register("hostile", node, 2, hostname=NAME) for node in range(2)]
            for node in nodes:
                assert caller.call("Scheduler", "WatchNode", member=node["member"]).code == "OK"
                assert caller.call("Scheduler", "ReportTrainers", **node, initialised=1).code == "OK"
            incident = {"kind": "stall", "text": "incident " + NAME}
            said = caller.call("Scheduler", "Heartbeat", **nodes[0], activity="activity " + NAME, links="links " + NAME, incidents=[incident])
            assert said.code == "OK", said.details
            for node, shape in zip(nodes, ("1", "2")):
                caller.call("Scheduler", "Declare", **node, tensors=[{"name": "tensor " + NAME, "shape": [shape]}])
            caller.call("Scheduler", "ReportFailure", **nodes[1], reason="reason " + NAME)
            for what in ("(on " + SHOWN, "incident " + SHOWN, "tensor " + SHOWN):
                eventually(lambda: what in cluster.scheduler.text(), 20 * PATIENCE, f"'{what}' in the scheduler's log")
            texts = [cluster.scheduler.log.read_bytes().decode()]
            for command in (["status"], ["jobs"], ["nodes"], ["why", "hostile"], ["top", "--once"], ["doctor"]):
                result = subprocess.run([cluster.bin_dir / "addendctl", *command, f"--scheduler={cluster.scheduler_address}"],
                                        capture_output=True, text=True, timeout=30 * PATIENCE, env=cluster.environment())
                texts += [result.stdout, result.stderr]
            for text in texts:
                assert not any(line.startswith(FORGED) for line in text.split("\n")), text
                assert "\x1b" not in text and "\u202e" not in text, text


def test_a_name_with_line_feeds_is_one_line_of_addendctl(tmp_path):
    with Cluster(tmp_path, nodes=1, job=NAME) as cluster:
        for command in (["status"], ["jobs"], ["nodes"], ["why", NAME], ["top", "--once"], ["doctor"]):
            result = subprocess.run([cluster.bin_dir / "addendctl", *command, f"--scheduler={cluster.scheduler_address}"],
                                    capture_output=True, text=True, timeout=30 * PATIENCE, env=cluster.environment())
            for text in (result.stdout, result.stderr):
                assert not any(line.startswith(FORGED) for line in text.split("\n")), (command, text)
                assert "\x1b" not in text and "\u202e" not in text, (command, text)
            if command[0] in ("status", "jobs", "why"):
                assert SHOWN in result.stdout, (command, result.stdout, result.stderr)


def test_a_flag_with_line_feeds_is_one_line_of_the_complaint(tmp_path):
    with Cluster(tmp_path) as cluster:
        result = subprocess.run([cluster.bin_dir / "addendctl", f"why\n{FORGED}", "x"], capture_output=True, text=True,
                                timeout=20 * PATIENCE, env=cluster.environment())
        assert result.returncode == 64
        assert result.stderr.count("\n") == 1 and f"why\\n{FORGED}" in result.stderr, result.stderr
