"""Hosts in racks of an emulated network: members find the racks by measuring alone, or are told; node ranks and other launchers follow."""
import itertools
import random
import subprocess

import pytest

from tests.support import netns
from tests.support.cluster import Cluster, PATIENCE, run_binary
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running

pytestmark = pytest.mark.skipif(bool(netns.unavailable()), reason=netns.unavailable())

MEASURING_S = 60


def shuffled(sizes, seed):
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(racks)
    return racks


def adjusted_rand_index(a, b):
    """1 if the two lists divide their items in the same way, about 0 if they have nothing to do with each other."""
    pairs = list(itertools.combinations(range(len(a)), 2))
    both = sum(a[i] == a[j] and b[i] == b[j] for i, j in pairs)
    in_a, in_b = sum(a[i] == a[j] for i, j in pairs), sum(b[i] == b[j] for i, j in pairs)
    chance, most = in_a * in_b / len(pairs), (in_a + in_b) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


def groups_of(network, hosts):
    """The finest group of each host, as addendctl network says."""
    of_address = {host["address"]: tuple(host["groups"]) for host in network["hosts"]}
    return [of_address.get(address) for address in hosts]


def find_racks(tmp_path, racks, **options):
    """The answer of addendctl network, as soon as it has the racks."""
    with netns.RackNetwork(racks, rate="400mbit", core="400mbit") as network:
        with Cluster(tmp_path, nodes=0, cpu_servers=len(racks), network=network, **options) as cluster:
            hosts = [network.address(host) for host in range(1, len(racks) + 1)]
            said = []

            def found():
                said[:] = [cluster.addendctl("network")]
                groups = groups_of(said[0], hosts)
                return None not in groups and adjusted_rand_index(groups, racks) == 1.0
            try:
                eventually(found, MEASURING_S * PATIENCE, "racks", interval=2)
            except AssertionError as error:
                raise AssertionError(f"the racks are {racks}, but addendctl network says {groups_of(said[0], hosts)}") from error
            return said[0]


def test_racks_are_found_by_measuring_alone(tmp_path):
    network = find_racks(tmp_path, shuffled([4, 4], seed=1), scheduler_flags=["--lease=2s"])
    assert network["source"] == "measured" and network["levels"] == 1
    across, within = network["kinds"]
    assert 0 < within["latency_s"] < across["latency_s"] < 0.01
    assert network["pairs"] == 28


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_four_racks_of_four_are_found_in_any_layout(tmp_path, seed):
    find_racks(tmp_path, shuffled([4, 4, 4, 4], seed), scheduler_flags=["--lease=2s"])


def test_a_told_place_needs_no_measurement(tmp_path):
    racks = shuffled([2, 2], seed=3)
    network = find_racks(tmp_path, racks, scheduler_flags=["--measure-network=false"],
                         flags_of_server=lambda index: [f"--network-place=zone/rack{racks[index]}"])
    assert network["source"] == "told" and network["pairs"] == 0
    assert sorted({host["place"] for host in network["hosts"]}) == ["zone/rack0", "zone/rack1"]


def test_a_file_of_places_counts_before_the_places_of_members(tmp_path):
    racks = shuffled([2, 2], seed=4)
    places = tmp_path / "places"
    places.write_text("# host  place\n" + "".join(f"10.77.0.{host}  rack{rack}\n" for host, rack in enumerate(racks, 1)))
    network = find_racks(tmp_path, racks, scheduler_flags=["--measure-network=false", f"--network-file={places}"],
                         flags_of_server=lambda _: ["--network-place=nowhere"])
    assert network["source"] == "told"


def test_a_wrong_file_of_places_is_named_with_its_line(tmp_path):
    places = tmp_path / "places"
    places.write_text("10.0.0.1 rack1\n10.0.0.2\n")
    result = run_binary("addend-scheduler", "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--store=memory", f"--network-file={places}")
    assert result.returncode == 64
    assert "line 2" in result.stderr and str(places) in result.stderr


def test_nodes_are_numbered_so_that_racks_are_neighbours(tmp_path):
    racks = shuffled([3, 3], seed=6)
    with netns.RackNetwork(racks, rate="400mbit", core="400mbit") as network:
        with Cluster(tmp_path, nodes=6, network=network, flags_of_node=lambda _: ["--node-rank=auto"], starting_s=60) as cluster:
            nodes = cluster.addendctl("nodes")
            assert [node["node_rank"] for node in nodes] == list(range(6))
            assert {cluster.agents[node].ports["node_rank"] for node in range(6)} == set(range(6))
            of_rank = [racks[int(node["control_address"].split(":")[0].split(".")[-1]) - 1] for node in nodes]
            assert of_rank in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
            # An agent that ends gives its number to the next that asks.
            free = nodes[2]
            host = int(free["control_address"].split(":")[0].split(".")[-1])
            cluster.agents[host - 1].stop()
            cluster.await_ports(cluster.start_agent(host - 1, name="again"), timeout=30)
            again, = (node for node in cluster.addendctl("nodes") if node["control_address"].startswith(f"10.77.0.{host}:"))
            assert again["node_rank"] == free["node_rank"]


def test_racks_have_relays_in_the_first_generation_after_they_were_measured(tmp_path):
    with netns.RackNetwork([0, 0, 0, 1, 1, 1], rate="400mbit", core="400mbit") as network:
        with Cluster(tmp_path, nodes=6, network=network, scheduler_flags=["--lease=2s"]) as cluster:
            def relayed():
                ranks = running(cluster)
                goes_on(ranks)
                finish(ranks)
                return "with relays for 2 groups of nodes" in cluster.scheduler.text()
            eventually(relayed, MEASURING_S * PATIENCE, "relays", interval=2)


def test_a_surplus_node_is_told_so(tmp_path):
    with Cluster(tmp_path, nodes=2, flags_of_node=lambda _: ["--node-rank=auto"]) as cluster:
        surplus = cluster.start_agent(2)
        surplus.wait(20 * PATIENCE)
        assert surplus.returncode == 64
        assert "all of its 2 nodes" in surplus.text()


def test_other_launchers_get_the_hosts_in_the_order_of_neighbours(tmp_path):
    racks = [0, 1, 0, 1]
    with netns.RackNetwork(racks, rate="400mbit", core="400mbit") as network:
        with Cluster(tmp_path, nodes=4, local_size=2, network=network, scheduler_flags=["--measure-network=false"],
                     flags_of_node=lambda node: [f"--network-place=rack{racks[node]}"]) as cluster:
            def ordered():
                ranks = cluster.addendctl("ranks", "job")
                return ranks if [host["present_node_rank"] for host in ranks] == [0, 2, 1, 3] else None
            ranks = eventually(ordered, 20 * PATIENCE, "the order of neighbours")
            assert [host["address"] for host in ranks] == [f"10.77.0.{host}" for host in (1, 3, 2, 4)]
            assert [(host["node_rank"], host["slots"]) for host in ranks] == [(0, 2), (1, 2), (2, 2), (3, 2)]
            for form, line in (("hostfile", " slots=2"), ("torchrun", " --nnodes=4 --nproc-per-node=2 --node-rank=3"),
                               ("rankfile", "rank 7=")):
                text = ctl(cluster, "ranks", "job", f"--format={form}").stdout
                assert line in text.splitlines()[-1], text
            wrong = ctl(cluster, "ranks", "nobody")
            assert wrong.returncode == 64 and "no job 'nobody'" in wrong.stderr


def ctl(cluster, *words):
    command = [*cluster.network.prefix(0), cluster.bin_dir / "addendctl", *words, f"--scheduler={cluster.scheduler_address}", "--insecure"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20 * PATIENCE, env=cluster.environment())
