"""Bounds of members' texts: a stranger cannot fill the log or the store, the status stays readable, and a text that cannot be stored ends
no scheduler.
"""
import time

import pytest

from tests.support import etcd
from tests.support.cluster import Cluster, PATIENCE
from tests.support.hand_made import Caller, registration
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running
from tests.security.test_hostile_members import job_of, server_of

LONG = 30_000_000
MB = 1_000_000


def stored(cluster):
    return sum(file.stat().st_size for file in cluster.folder.glob("store.db*"))


def resident_bytes(process):
    line = next(line for line in open(f"/proc/{process.pid}/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def with_store(tmp_path, **more):
    return Cluster(tmp_path, store=f"sqlite:{tmp_path}/store.db", scheduler_flags=["--lease=120s"], **more)


def refused(said, field=""):
    """gRPC refuses a message above the size of any request, the scheduler a text that is too long for its field."""
    assert said.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), (said.code, said.details)
    assert said.code == "RESOURCE_EXHAUSTED" or field in said.details, said.details
    assert len(said.details) < 1000


def test_a_text_of_any_length_is_refused_or_cut(tmp_path):
    with with_store(tmp_path, nodes=2, cpu_servers=1) as cluster:
        ranks = running(cluster)
        log = cluster.scheduler.log
        before = resident_bytes(cluster.scheduler)
        with Caller(cluster.scheduler_address) as caller:
            for size in (LONG, LONG // 4):
                text = "x" * size
                refused(caller.call("Scheduler", "RegisterServer", **{**server_of("", 0), "hostname": text}), "hostname")
                refused(caller.call("Scheduler", "RegisterServer", **{**server_of("", 0), "control_address": text}), "control_address")
                refused(caller.call("Scheduler", "RegisterServer", **{**server_of("", 0), "endpoints": [{"transport": "tcp", "host": text, "port": 1}]}), "host")
                refused(caller.call("Scheduler", "RegisterNode", **{**registration("hostile", 0, 2), "hostname": text}), "hostname")
                refused(caller.call("Scheduler", "RegisterNode", **registration("hostile", 0, 2, settings={"on_node_loss": text})), "on_node_loss")
            many = [{"transport": "tcp", "host": "127.0.0.1", "port": 1}] * 100_000
            refused(caller.call("Scheduler", "RegisterServer", **{**server_of("", 0), "endpoints": many}), "endpoints")
            node = caller.register("hostile", 0, 1)
            assert caller.call("Scheduler", "WatchNode", member=node["member"]).code == "OK"
            for size in (LONG, LONG // 4):
                text = "x" * size
                beat = {"member": node["member"], "generation": node["generation"]}
                refused(caller.call("Scheduler", "Heartbeat", **beat, activity=text), "activity")
                refused(caller.call("Scheduler", "Heartbeat", **beat, links=text), "links")
                refused(caller.call("Scheduler", "Heartbeat", **beat, incidents=[{"kind": "stall", "text": text}]), "text")
                refused(caller.call("Scheduler", "ReportFailure", **node, reason=text), "reason")
                refused(caller.call("Scheduler", "Declare", **node, tensors=[{"name": text, "shape": ["1"]}]), "name")
            # The longest accepted texts, as often as the member likes.
            for _ in range(200):
                incidents = [{"kind": "stall", "text": "y" * 9_000}] * 100
                assert caller.call("Scheduler", "Heartbeat", **beat, activity="y" * 9_000, links="y" * 9_000, incidents=incidents).code == "OK"
            assert caller.call("Scheduler", "ReportFailure", **node, reason="y" * 9_000).code == "OK"
        goes_on(ranks)
        assert log.stat().st_size < 4 * MB
        assert stored(cluster) < 2 * MB
        assert len(str(cluster.addendctl("status"))) < MB
        assert resident_bytes(cluster.scheduler) - before < 200 * MB
        finish(ranks)


def test_members_that_come_and_go_as_fast_as_they_can_fill_no_log(tmp_path):
    with with_store(tmp_path, nodes=0) as cluster:
        start = time.monotonic()
        with Caller(cluster.scheduler_address) as caller:
            for _ in range(1500):
                fields = {**server_of("", 0), "hostname": "h" * 250}
                said = caller.call("Scheduler", "RegisterServer", **fields)
                assert said.code == "OK", said.details
                member = {"server_id": said.answer["server_id"], "incarnation": fields["incarnation"], "key": fields["member_key"]}
                assert caller.call("Scheduler", "Leave", member=member).code == "OK"
            for _ in range(1500):
                caller.call("Scheduler", "RegisterServer", **{**server_of("", 0), "shards": 0})
        seconds = int(time.monotonic() - start) + 2
        lines = cluster.scheduler.log.read_text().splitlines()
        assert len(lines) < 50 + 110 * seconds, "at most a hundred lines of what happened, and ten refusals, in a second"
        assert sum("refused" in line for line in lines) <= 10 * seconds
        assert any("others since the last line)" in line for line in lines), "what is left out is counted"


@pytest.mark.full
@pytest.mark.skipif(bool(etcd.unavailable()), reason=etcd.unavailable())
def test_a_plan_larger_than_etcd_takes_ends_no_scheduler(tmp_path):
    """A tensor of a million partitions: its plan exceeds the 1.5 MiB of a request to etcd."""
    with Cluster(tmp_path, nodes=2, cpu_servers=1, schedulers=2, scheduler_flags=["--lease=40s"]) as cluster:
        ranks = running(cluster)
        leader = cluster.leader()
        with Caller(cluster.scheduler_address.split(",")[leader]) as caller:
            nodes = [caller.register("hostile", node, 2, settings={"partition_bytes": "512"}) for node in range(2)]
            for node in nodes:
                assert caller.call("Scheduler", "WatchNode", member=node["member"]).code == "OK"
                assert caller.call("Scheduler", "ReportTrainers", **node, initialised=1).code == "OK"
            for node in nodes:
                assert caller.call("Scheduler", "Declare", **node, tensors=[{"name": "t", "shape": [str(1 << 27)]}]).code == "OK"

            def planned():
                for node in nodes:  # they stay members, however long a busy machine takes
                    assert caller.call("Scheduler", "Heartbeat", **node).code == "OK"
                # The plan is announced after it is stored: if the job has tensors, etcd has its plan.
                return (job_of(cluster, "hostile") or {"tensors": 0})["tensors"] == 1

            eventually(planned, 150 * PATIENCE, "the plan of the hostile job")
            assert max(etcd.value_bytes(cluster.etcd, "record/").values()) > 1.5 * (1 << 20), "smaller than a request to etcd: the test shows nothing"
        goes_on(ranks)
        assert cluster.schedulers[leader].returncode is None, cluster.schedulers[leader].tail()
        assert cluster.leader() == leader
        # The other scheduler can read the stored plan.
        cluster.schedulers[leader].kill()
        eventually(lambda: cluster.schedulers[1 - leader].port_file.exists(), 120 * PATIENCE, "the other scheduler to lead")
        assert job_of(cluster, "job")["state"] == "ready"
        finish(ranks)
