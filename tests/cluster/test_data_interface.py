"""Machines with two networks: gradients take the interface that --data-interface names, and everything else the other."""
import subprocess

import pytest

from tests.support import netns
from tests.support.cluster import Cluster

SECOND = "10.78.0"


def ip(namespace, *words):
    subprocess.run(["ip", "-n", namespace, *words], check=True)


@pytest.fixture
def network():
    """Three hosts, each with a second interface, net1, on a network of its own."""
    if reason := netns.unavailable():
        pytest.skip(reason)
    with netns.Network(3, "10gbit") as network:
        bridge = network.namespace("bridge")
        ip(bridge, "link", "add", "second", "type", "bridge")
        ip(bridge, "link", "set", "second", "up")
        for host in (1, 2, 3):
            namespace = network.namespace(host)
            subprocess.run(["ip", "link", "add", "net1", "netns", namespace, "type", "veth", "peer", "name", f"second{host}", "netns", bridge],
                           check=True)
            ip(bridge, "link", "set", f"second{host}", "master", "second", "up")
            ip(namespace, "addr", "add", f"{SECOND}.{host}/24", "dev", "net1")
            ip(namespace, "link", "set", "net1", "up")
        yield network


def sent(network, host, interface):
    """The bytes that a host has sent by an interface."""
    command = [*network.prefix(host), "cat", f"/sys/class/net/{interface}/statistics/tx_bytes"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_gradients_take_the_named_interface_and_calls_the_other(tmp_path, network):
    flags = ("--data-interface=net1", "--data-listen=:0", "--wire-encoding=raw")
    with Cluster(tmp_path, 2, cpu_servers=1, network=network, agent_flags=flags, summation_flags=flags) as cluster:
        results = cluster.run_ranks("volume.py", {"bytes": 8_000_000, "rounds": 5, "tensors": 4}, timeout=60)
        assert all(outcome.result["right"] for outcome in results)
        endpoints = [server["endpoints"] for server in cluster.addendctl("status")["servers"]]
        assert len(endpoints) == 3 and all(SECOND in str(one) for one in endpoints), endpoints
        for host in (1, 2):
            assert sent(network, host, "net1") > 5 * 8_000_000 / 2, "the gradients are not there"
            assert sent(network, host, "eth0") < 2_000_000, "gradients are there, too"


def test_an_interface_that_is_not_there_is_a_sentence_with_those_that_are(tmp_path):
    with Cluster(tmp_path, nodes=0) as cluster:
        cluster.nodes = 1
        agent = cluster.start("agent", [cluster.bin_dir / "addend-agent", "--insecure", *cluster.agent_command_flags(0), "--data-interface=net7"])
        assert agent.wait(30) == 64
        assert "--data-interface: there is no interface 'net7' with an address here: there " in agent.text()
