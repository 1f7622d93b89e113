"""Hand-made members, of their own jobs or of no job: their messages to the scheduler cost other jobs nothing."""
import os
import time

import pytest

from tests.support.cluster import Cluster, PATIENCE
from tests.support.hand_made import KEY, Caller, registration
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

SHARED = ["--colocated-summation=false"]
LEASE = ["--lease=30s"]  # hand-made members send no heartbeats


def cpu_servers(cluster):
    return [server["server_id"] for server in cluster.addendctl("status")["servers"] if not server["colocated"]]


def job_of(cluster, name):
    return next((job for job in cluster.addendctl("status")["jobs"] if job["name"] == name), None)


def job_with_a_plan(cluster, caller, name, **settings):
    """Two nodes and a planned tensor: the scheduler accepts its nodes' reports about servers."""
    nodes = [caller.register(name, node, 2, settings=settings) for node in range(2)]
    for node in nodes:
        assert caller.call("Scheduler", "WatchNode", member=node["member"]).code == "OK"
        assert caller.call("Scheduler", "ReportTrainers", **node, initialised=1).code == "OK"
    for node in nodes:
        assert caller.call("Scheduler", "Declare", **node, tensors=[{"name": "t", "shape": ["1000000"]}]).code == "OK"
    eventually(lambda: job_of(cluster, name)["tensors"] == 1, 20 * PATIENCE, f"the plan of job {name}")
    return nodes


def test_one_jobs_word_takes_no_server_from_another_job(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2, scheduler_flags=LEASE, agent_flags=SHARED) as cluster:
        ranks = running(cluster)
        servers = cpu_servers(cluster)
        with Caller(cluster.scheduler_address) as caller:
            nodes = job_with_a_plan(cluster, caller, "hostile")
            for server in servers:
                for node in nodes:
                    assert caller.call("Scheduler", "ReportServerLost", **node, server_id=server, reason="I say so").code == "OK"
            eventually(lambda: job_of(cluster, "hostile")["state"] == "failed", 20 * PATIENCE, "the end of the job that reaches no server")
            goes_on(ranks)
            assert cpu_servers(cluster) == servers
            hostile = job_of(cluster, "hostile")
            assert hostile["state"] == "failed" and "cannot reach server" in hostile["reason"] and "I say so" in hostile["reason"], hostile
        assert job_of(cluster, "job")["state"] == "ready"
        finish(ranks)


def test_a_job_whose_node_cannot_reach_a_server_goes_on_at_the_others(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2, scheduler_flags=LEASE, agent_flags=SHARED) as cluster:
        ranks = running(cluster)
        first, second = cpu_servers(cluster)
        with Caller(cluster.scheduler_address) as caller:
            nodes = job_with_a_plan(cluster, caller, "other")
            caller.call("Scheduler", "ReportServerLost", **nodes[0], server_id=first, reason="no route")

            def owners():
                return {share["server_id"] for share in job_of(cluster, "other")["shares"]}
            eventually(lambda: owners() == {second}, 20 * PATIENCE, "a plan without the server")
            assert job_of(cluster, "other")["state"] == "ready"
        goes_on(ranks)
        finish(ranks)


def test_what_one_job_measures_takes_nothing_from_another_job(tmp_path):
    """Its nodes report that a server works three times as long for them as the other server."""
    with Cluster(tmp_path, nodes=2, cpu_servers=2, scheduler_flags=LEASE, agent_flags=[*SHARED, "--partition-bytes=4KiB"]) as cluster:
        ranks = running(cluster)
        first, second = cpu_servers(cluster)

        def shares(name):
            return {share["server_id"]: share["assigned"] for share in job_of(cluster, name)["shares"]}
        with Caller(cluster.scheduler_address) as caller:
            nodes = job_with_a_plan(cluster, caller, "hostile", partition_bytes="4096")
            eventually(lambda: len(shares("job")) == 2 and job_of(cluster, "job")["state"] == "ready", 20 * PATIENCE, "a plan on both servers")
            before = shares("job")
            version = job_of(cluster, "job")["plan_version"]
            for times in range(1, 12):
                for node in nodes:
                    paces = [{"server_id": server, "served_s": seconds * times, "services": str(10 * times)} for server, seconds in ((first, 0.9), (second, 0.3))]
                    assert caller.call("Scheduler", "Heartbeat", member=node["member"], generation=node["generation"], paces=paces).code == "OK"
                time.sleep(0.6 * PATIENCE)
            eventually(lambda: "times as long as the others" in cluster.scheduler.log.read_text(), 5 * PATIENCE, "the scheduler to believe them")
            goes_on(ranks)
            assert job_of(cluster, "job")["plan_version"] == version and shares("job") == before
        finish(ranks)


def server_of(job, node, **more):
    return {"protocol_version": 1, "incarnation": str(int.from_bytes(os.urandom(7), "big") + 1), "control_address": "127.0.0.1:1", "shards": 1,
            "endpoints": [{"transport": "tcp", "host": "127.0.0.1", "port": 1}], "hostname": "hand-made", "colocated_job": job, "colocated_node": node,
            "member_key": KEY, **more}


def test_a_strangers_colocated_server_keeps_no_job_from_starting(tmp_path):
    """A stranger registers the colocated servers of both nodes before the nodes' agents start."""
    secret = tmp_path / "secret"
    secret.write_text("known to the job's agents alone")
    with Cluster(tmp_path, nodes=0, scheduler_flags=LEASE, agent_flags=[f"--job-secret-file={secret}"]) as cluster:
        with Caller(cluster.scheduler_address) as caller:
            for node in range(2):
                assert caller.call("Scheduler", "RegisterServer", **server_of("job", node)).code == "OK"
            cluster.nodes = 2
            for node in range(2):
                cluster.await_ports(cluster.start_agent(node))
            finish(running(cluster))


def test_colocated_servers_whose_jobs_never_come_give_way(tmp_path):
    with Cluster(tmp_path, nodes=2, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        with Caller(cluster.scheduler_address) as caller:
            for number in range(1200):
                assert caller.call("Scheduler", "RegisterServer", **server_of(f"no job {number}", 0)).code == "OK"
        goes_on(ranks)
        assert len(cluster.addendctl("status")["servers"]) <= 1024 + 2
        finish(ranks)


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_jobs_cost_the_scheduler_what_has_registered_and_not_what_they_claim(tmp_path):
    with Cluster(tmp_path, nodes=2, scheduler_flags=LEASE) as cluster:
        ranks = running(cluster)
        with Caller(cluster.scheduler_address) as caller:
            for number in range(20):
                caller.register(f"hostile{number}", 0, nodes=65536)
            before = cpu_seconds(cluster.scheduler)
            time.sleep(4)
            spent = cpu_seconds(cluster.scheduler) - before
        goes_on(ranks)
        finish(ranks)
        assert spent < 0.8, f"{spent} s of processor time in 4 s"


@pytest.mark.parametrize("key", ["", "c2hvcnQ="])
def test_a_member_without_a_key_of_its_own_is_refused(tmp_path, key):
    with Cluster(tmp_path, nodes=1) as cluster, Caller(cluster.scheduler_address) as caller:
        for said in (caller.call("Scheduler", "RegisterNode", **{**registration("hostile", 0, 1), "member_key": key}),
                     caller.call("Scheduler", "RegisterServer", **{**server_of("", 0), "member_key": key})):
            assert said.code == "INVALID_ARGUMENT" and "a key of 32 bytes" in said.details, said
