"""An emulated network: hosts in network namespaces around a bridge, every link limited in both directions.

    with Network(hosts=3, rate="200mbit") as network:
        subprocess.run([*network.prefix(1), "ping", network.address(2)])

Needs root and Linux's veth, bridge and tbf; unavailable() names what is missing.
"""
import itertools
import os
import subprocess

_numbers = itertools.count(os.getpid() % 10_000 * 10)


def _run(*words):
    result = subprocess.run(list(words), capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")


def unavailable():
    """The reason why no network can be emulated here, or an empty string."""
    if os.geteuid() != 0:
        return "emulating a network needs root"
    probe = f"addend-probe{os.getpid()}"
    try:
        _run("ip", "netns", "add", probe)
        try:
            _run("ip", "-n", probe, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
            _run("ip", "-n", probe, "link", "add", "probe2", "type", "bridge")
            _run("ip", "netns", "exec", probe, "tc", "qdisc", "add", "dev", "probe0", "root", "tbf",
                 "rate", "1mbit", "burst", "100000", "limit", "100000")
        finally:
            _run("ip", "netns", "del", probe)
    except (OSError, RuntimeError) as error:
        return f"this kernel cannot emulate a network ({error})"
    return ""


class Network:
    """Hosts 1..n at 10.77.0.i. The bridge has its own unlimited address, `gateway`, for traffic that is not measured."""

    gateway = "10.77.0.254"

    def __init__(self, hosts, rate):
        self._name = f"addend{next(_numbers)}"
        self._hosts, self._rate = hosts, rate

    def namespace(self, host):
        return f"{self._name}-{host}"

    def address(self, host):
        return f"10.77.0.{host}"

    def prefix(self, host):
        """The start of a command line that runs on a host; 0: on the bridge."""
        return ["ip", "netns", "exec", self.namespace(host or "bridge")]

    def limit(self, host, rate, up=None):
        """Limits a host's link in both directions; `up` gives its sending direction another rate."""
        for namespace, device, rate in ((self.namespace(host), "eth0", up or rate), (self.namespace("bridge"), f"host{host}", rate)):
            _run("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, "root", "tbf",
                 "rate", rate, "burst", "131072", "limit", "1000000")

    def cut(self, host):
        """Cuts a host's link silently, without closing any connection."""
        _run("ip", "-n", self.namespace("bridge"), "link", "set", f"host{host}", "down")

    def mend(self, host):
        _run("ip", "-n", self.namespace("bridge"), "link", "set", f"host{host}", "up")

    def _add_host(self, host):
        bridge, namespace = self.namespace("bridge"), self.namespace(host)
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", f"host{host}", "netns", bridge)
        _run("ip", "-n", bridge, "link", "set", f"host{host}", "master", "bridge", "up")
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        # The machine's default congestion control may differ from plain Linux's.
        _run("ip", "-n", namespace, "route", "replace", "10.77.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link",
             "src", self.address(host), "congctl", "cubic")
        self.limit(host, self._rate)

    def __enter__(self):
        try:
            bridge = self.namespace("bridge")
            _run("ip", "netns", "add", bridge)
            _run("ip", "-n", bridge, "link", "set", "lo", "up")
            _run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", bridge, "addr", "add", f"{self.gateway}/24", "dev", "bridge")
            _run("ip", "-n", bridge, "link", "set", "bridge", "up")
            for host in range(1, self._hosts + 1):
                self._add_host(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in ["bridge", *range(1, self._hosts + 1)]:
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True)
