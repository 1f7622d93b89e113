"""JSON logs: every line of every service, also on failures; and the amount of logging."""
import json
import re
import signal

import pytest

from tests.support.cluster import Cluster, PATIENCE, run_binary
from tests.support.processes import eventually
from tests.support.rounds import goes_on, running

FIELDS = ["time", "level", "process", "job", "node", "message"]
LEVELS = {"trace", "debug", "info", "warning", "error", "critical"}


def parsed(text):
    """The lines, each of which must be a single object with the promised fields."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert list(line) == FIELDS, line
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
        assert line["level"] in LEVELS, line
    return lines


def test_every_line_of_every_service_is_json(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2, job='a "job"', common_flags=["--log-format=json"], scheduler_flags=["--lease=3s"]) as cluster:
        ranks = running(cluster)
        cluster.servers[0].kill()
        goes_on(ranks)
        ranks.processes[1].kill()  # fails the job
        eventually(lambda: ranks.processes[0].returncode is not None, 20 * PATIENCE, "the other rank to learn it")
        services = [*cluster.agents.values(), cluster.servers[1], cluster.scheduler]
        for service in services:
            service.signal(signal.SIGTERM)
            assert service.wait(20 * PATIENCE) == 0
        for node, agent in cluster.agents.items():
            lines = parsed(agent.text())
            assert {(line["process"], line["job"], line["node"]) for line in lines} == {("agent", 'a "job"', node)}
            assert any("has failed" in line["message"] and line["level"] == "error" for line in lines)
        for service, process in [(cluster.servers[1], "summation"), (cluster.scheduler, "scheduler")]:
            lines = parsed(service.text())
            assert {(line["process"], line["job"], line["node"]) for line in lines} == {(process, None, None)}


@pytest.mark.parametrize("binary,process", [
    ("addend-scheduler", "scheduler"), ("addend-summation", "summation"), ("addend-agent", "agent")])
def test_complaints_about_flags_are_json_too(binary, process):
    for arguments, variables in [(["--log-format=json"], {}), ([], {"ADDEND_LOG_FORMAT": "json"}), (["--log_format", "json"], {})]:
        result = run_binary(binary, *arguments, "--nonsense", env={"ADDEND_LOG_LEVELS": "info", **variables})
        assert result.returncode == 64
        (last,) = parsed(result.stderr)
        assert last["process"] == process and last["level"] == "critical" and "--nonsense" in last["message"]


def test_the_final_error_of_a_service_is_a_line_of_its_log():
    result = run_binary("addend-agent", "--job=x", "--log-format=json", "--scheduler=127.0.0.1:1", "--connect-timeout=1s", "--socket=",
                        "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=off",
                        env={"ADDEND_LOG_LEVELS": "info"})
    assert result.returncode != 0
    lines = parsed(result.stderr)
    assert lines[0]["level"] == "warning" and "did you mean ADDEND_LOG_LEVEL?" in lines[0]["message"]
    assert lines[-1]["level"] == "critical" and (lines[-1]["job"], lines[-1]["node"]) == ("x", 0)


def test_an_unknown_format_is_bad_configuration():
    result = run_binary("addend-scheduler", "--store=memory", "--log-format=xml")
    assert result.returncode == 64 and "--log-format=xml is not a format: use text or json" in result.stderr


def test_rounds_are_not_logged(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        services = [cluster.scheduler, *cluster.servers, *cluster.agents.values()]
        before = {service.name: service.text() for service in services}
        goes_on(ranks, rounds=100, timeout=60)
        assert {service.name: service.text() for service in services} == before
