"""Several pods of a machine, each of which its launcher takes for a machine, are local ranks of one agent's node."""
import signal

import pytest

from tests.cluster.test_gpu import NVLINK, expected, topology
from tests.support import scrape
from tests.support.cluster import PATIENCE, SANITIZED, Cluster
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on

BY_TRAINERS = ["--node-rank=trainers"]


def pods_of(ranks, **more):
    """The environment of a launcher that starts so many ranks in each pod."""
    return lambda rank: {"LOCAL_RANK": rank % ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": rank // ranks,
                         **{key: value(rank) for key, value in more.items()}}


def check_rounds(cluster, env):
    ranks = cluster.start_ranks("rounds.py", {"ranks_of_a_node": cluster.local_size}, env=env)
    ranks.wait_at("running")
    ranks.open("running")
    goes_on(ranks)
    finish(ranks)


def trainer_says(cluster, rank, env, status):
    """The reason that the rank's init() gives."""
    outcome, = cluster.run_ranks("attempt.py", ranks=[rank], env=env)
    assert outcome.result["init"]["code"] == status, outcome.result
    return outcome.result["init"]["text"]


@pytest.mark.parametrize("local_size,ranks_of_a_pod", [(2, 1), (4, 2)])
def test_the_sums_are_those_of_the_node(tmp_path, local_size, ranks_of_a_pod):
    with Cluster(tmp_path, 2, local_size, cpu_servers=1) as cluster:
        check_rounds(cluster, pods_of(ranks_of_a_pod))


def test_a_pod_is_a_node_to_its_trainers(tmp_path):
    with Cluster(tmp_path, 2, 4) as cluster:
        outcomes = cluster.run_ranks("places.py", {"elements": 1}, env=pods_of(2))
    for outcome in outcomes:
        pod, local_rank = divmod(outcome.rank, 2)
        assert outcome.result == {"rank": outcome.rank, "size": 8, "local_rank": local_rank, "local_size": 2, "node_rank": pod,
                                  "num_nodes": 4, "nodes_present": 4, "nodes_waiting": 0}


def test_only_the_sum_of_the_pods_leaves_the_machine(tmp_path):
    elements = 1 << 20
    with Cluster(tmp_path, 2, 4) as cluster:
        cluster.run_ranks("places.py", {"elements": elements}, env=pods_of(1))
        for agent in cluster.agents.values():
            sent = scrape.total([agent], "addend_agent_network_bytes_total", direction="sent")
            # Half of a contribution, as if the machine had a single rank.
            assert 2 * elements <= sent < 1.05 * 2 * elements


def test_pods_that_do_not_belong_to_the_node_are_told_so(tmp_path):
    with Cluster(tmp_path, 2, 4) as cluster:
        env = pods_of(1, ADDEND_SOCKET=lambda rank: cluster.socket(1 - rank // 4))
        assert "RANK=1 does not fit this agent, whose node 1 has ranks 4 to 7" in trainer_says(cluster, 1, env, 64)
        assert "LOCAL_WORLD_SIZE=3 does not fit this agent" in trainer_says(cluster, 0, lambda rank: {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 3}, 64)


@pytest.mark.skipif(bool(SANITIZED), reason="the trainers' library is that of the release build")
@pytest.mark.parametrize("flag,expect", [("--intranode=auto", 0), ("--intranode=reduce-scatter", None)])
def test_gpus_of_several_pods_copy_to_the_host(tmp_path, flag, expect):
    sizes = [1, 300_007]
    with Cluster(tmp_path, 2, 2, agent_flags=[topology("paper-nvlink"), flag]) as cluster:
        ranks = cluster.start_ranks("gpu.py", {"what": "rounds", "sizes": sizes, "rounds": 2, "bus_ids": NVLINK[2:3]}, env=pods_of(1))
        outcomes = ranks.join(90, expect=expect)
        logs = "".join(agent.text() for agent in cluster.agents.values())
    if expect is None:
        assert all("--intranode=reduce-scatter needs all GPUs of a node in one pod" in outcome.log for outcome in outcomes), outcomes[0].log
        return
    assert "GPUs of this node aggregate by copy: the ranks are in several pods" in logs
    assert all(outcome.result == expected(2, [[0, 1]], sizes, 2) for outcome in outcomes)


def test_agents_take_their_node_from_the_trainers_and_another_one_afterwards(tmp_path):
    """Two runs of a job; in the second the pods of each machine have the ranks that the other's had."""
    with Cluster(tmp_path, 2, 2, cpu_servers=1, flags_of_node=lambda node: BY_TRAINERS) as cluster:
        for swapped in (False, True, True):
            check_rounds(cluster, pods_of(1, ADDEND_SOCKET=lambda rank: cluster.socket(rank // 2 ^ swapped)))
        for agent in cluster.agents.values():
            assert agent.returncode is None and agent.stop() == 0, agent.tail()


def test_trainers_of_another_node_that_come_before_the_former_run_is_over_wait_for_it(tmp_path):
    with Cluster(tmp_path, 2, 2, flags_of_node=lambda node: BY_TRAINERS) as cluster:
        former = cluster.start_ranks("rounds.py", {"ranks_of_a_node": 2}, env=pods_of(1))
        former.wait_at("running")
        former.open("running")
        cluster.scheduler.signal(signal.SIGSTOP)  # it has to say that the run is over on all nodes
        finish(former)
        swapped = pods_of(1, ADDEND_SOCKET=lambda rank: cluster.socket(1 - rank // 2))
        ranks = cluster.start_ranks("rounds.py", {"ranks_of_a_node": 2}, env=swapped)
        for process in ranks.processes.values():
            eventually(lambda: "waiting for the former run to end on all nodes" in process.text(), 20 * PATIENCE, "the rank to wait")
        cluster.scheduler.signal(signal.SIGCONT)
        ranks.wait_at("running")
        ranks.open("running")
        goes_on(ranks)
        finish(ranks)


def test_a_trainer_finds_the_agent_that_is_started_again_before_the_job_begins(tmp_path):
    with Cluster(tmp_path, 2) as cluster:
        ranks = cluster.start_ranks("rounds.py", ranks=[0])
        eventually(lambda: "waiting for" in ranks.processes[0].text(), 20 * PATIENCE, "the rank to wait")
        cluster.agents[0].kill()
        cluster.agents[0] = cluster.start_agent(0, name="again")
        others = cluster.start_ranks("rounds.py", ranks=[1])
        for some in (ranks, others):
            some.wait_at("running")
            some.open("running")
        others.open("stop")
        ranks.open("stop")
        assert all(outcome.result["wrong"] == [] for some in (ranks, others) for outcome in some.join(60 * PATIENCE))


def test_an_agent_without_trainers_ends_when_it_is_asked_to(tmp_path):
    with Cluster(tmp_path, 1, agent_flags=BY_TRAINERS) as cluster:
        assert cluster.agents[0].stop() == 0
        assert "whose RANK says which node this is" in cluster.agents[0].text()


def test_trainers_of_another_node_hear_that_the_first_trainer_has_said_it(tmp_path):
    with Cluster(tmp_path, 2, 2, flags_of_node=lambda node: BY_TRAINERS) as cluster:
        ranks = cluster.start_ranks("rounds.py", {"ranks_of_a_node": 2}, env=pods_of(1))
        ranks.wait_at("running")
        stray = pods_of(1, ADDEND_SOCKET=lambda rank: cluster.socket(0))
        assert "node 0 has ranks 0 to 1 (the first trainer said so: --node-rank=trainers)" in trainer_says(cluster, 2, stray, 64)
        ranks.open("running")
        finish(ranks)


def test_a_trainer_that_is_killed_before_the_job_begins_lets_the_node_be_chosen_again(tmp_path):
    with Cluster(tmp_path, 2, 2, flags_of_node=lambda node: BY_TRAINERS) as cluster:
        lost = cluster.start_ranks("rounds.py", {"ranks_of_a_node": 2}, ranks=[3], env=pods_of(1, ADDEND_SOCKET=lambda rank: cluster.socket(0)))
        eventually(lambda: "node 1 of job" in cluster.agents[0].text(), 10 * PATIENCE, "the agent to take node 1")
        lost.processes[3].kill()
        eventually(lambda: cluster.agents[0].text().count("whose RANK says which node this is") == 2, 10 * PATIENCE, "the agent to wait again")
        check_rounds(cluster, pods_of(1))


@pytest.mark.parametrize("killed", ["trainer", "agent"])
def test_a_loss_ends_the_run_and_the_next_run_begins(tmp_path, killed):
    with Cluster(tmp_path, 2, 2, flags_of_node=lambda node: BY_TRAINERS) as cluster:
        ranks = cluster.start_ranks("rounds.py", {"ranks_of_a_node": 2}, env=pods_of(1))
        ranks.wait_at("running")
        ranks.open("running")
        (ranks.processes[3] if killed == "trainer" else cluster.agents[1]).kill()
        for outcome in ranks.join(60, expect=None):
            if killed == "agent" or outcome.rank != 3:
                assert outcome.result["error"] == "PeerLostError", outcome.result
        if killed == "agent":
            cluster.await_ports(cluster.start_agent(1, name="again"))
        check_rounds(cluster, pods_of(1))
