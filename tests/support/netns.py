"""An emulated network: hosts in network namespaces around a bridge, every link limited in both directions.

    with Network(hosts=3, rate="200mbit") as network:
        subprocess.run([*network.prefix(1), "ping", network.address(2)])

Needs root and Linux's veth, bridge and tbf; unavailable() names what is missing.
"""
import itertools
import os
import subprocess

_HOST_BUFFER = 1_000_000  # bytes that wait at most in a host, which has more memory than a port of a switch
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

    def __init__(self, hosts, rate, buffer=1_000_000):
        """`buffer`: bytes that wait at most at a port of the switch; further packets are lost."""
        self._name = f"addend{next(_numbers)}"
        self._hosts, self._rate, self._buffer = hosts, rate, buffer

    def namespace(self, host):
        return f"{self._name}-{host}"

    def address(self, host):
        return f"10.77.0.{host}"

    def prefix(self, host):
        """The start of a command line that runs on a host; 0: on the bridge."""
        return ["ip", "netns", "exec", self.namespace(host or "bridge")]

    def switch(self, host):
        """The namespace of the bridge at the other end of a host's link."""
        return self.namespace("bridge")

    def retransmitted(self):
        """Segments that the hosts have sent again since the start."""
        total = 0
        for host in range(1, self._hosts + 1):
            text = subprocess.run([*self.prefix(host), "cat", "/proc/net/snmp"], capture_output=True, text=True, check=True).stdout
            names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:"))
            total += int(values[names.index("RetransSegs")])
        return total

    @staticmethod
    def _shape(namespace, device, rate, buffer, burst=131_072):
        _run("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, "root", "tbf",
             "rate", rate, "burst", str(burst), "limit", str(buffer))

    def limit(self, host, rate, up=None):
        """Limits a host's link in both directions; `up` gives its sending direction another rate."""
        # A host sends no faster than its link, even after a pause: a burst would fill a shallow port.
        burst = min(131_072, self._buffer // 2)
        self._shape(self.namespace(host), "eth0", up or rate, _HOST_BUFFER, burst)
        self._shape(self.switch(host), f"host{host}", rate, self._buffer)

    def cut(self, host):
        """Cuts a host's link silently, without closing any connection."""
        _run("ip", "-n", self.switch(host), "link", "set", f"host{host}", "down")

    def mend(self, host):
        _run("ip", "-n", self.switch(host), "link", "set", f"host{host}", "up")

    def _add_host(self, host):
        bridge, namespace = self.switch(host), self.namespace(host)
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
            self._add_switches()
            for host in range(1, self._hosts + 1):
                self._add_host(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add_switches(self):
        """The bridge is the only one."""

    def _parts(self):
        return ["bridge", *range(1, self._hosts + 1)]

    def __exit__(self, *_):
        for part in self._parts():
            subprocess.run(["ip", "netns", "del", self.namespace(part)], capture_output=True)


class RackNetwork(Network):
    """Hosts in racks, each with a bridge of its own, whose links to the bridge in the middle are limited to `core`.

    `racks`: the rack of each host, from host 1 on.
    """

    def __init__(self, racks, rate, core):
        super().__init__(len(racks), rate)
        self.racks, self._core = list(racks), core

    def switch(self, host):
        return self.namespace(f"rack{self.racks[host - 1]}")

    def _add_switches(self):
        bridge = self.namespace("bridge")
        for rack in sorted(set(self.racks)):
            switch = self.namespace(f"rack{rack}")
            _run("ip", "netns", "add", switch)
            _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            _run("ip", "link", "add", "core", "netns", switch, "type", "veth", "peer", "name", f"rack{rack}", "netns", bridge)
            _run("ip", "-n", switch, "link", "set", "bridge", "up")
            _run("ip", "-n", switch, "link", "set", "core", "master", "bridge", "up")
            _run("ip", "-n", bridge, "link", "set", f"rack{rack}", "master", "bridge", "up")
            self._shape(switch, "core", self._core, self._buffer)
            self._shape(bridge, f"rack{rack}", self._core, self._buffer)

    def _parts(self):
        return [*super()._parts(), *(f"rack{rack}" for rack in sorted(set(self.racks)))]
