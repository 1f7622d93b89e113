"""Emulated machines for the benchmarks: network namespaces with limited links, and a cluster of the real binaries on them."""
import contextlib
import json
import pathlib
import subprocess
import tempfile

from bench import recordings
from tests.support import netns
from tests.support.cluster import BIN_DIR, PYTHON, Cluster

BENCH = pathlib.Path(__file__).resolve().parent


@contextlib.contextmanager
def network(rates, buffer=1_000_000):
    """Hosts 1, 2, ... whose links have these rates in Mbit/s in each direction; `buffer`: as of netns.Network."""
    with netns.Network(len(rates), f"{max(rates)}mbit", buffer) as result:
        for host, rate in enumerate(rates, 1):
            result.limit(host, f"{rate}mbit")
            # Otherwise links that idle between rounds would restart with TCP's slow start.
            subprocess.run([*result.prefix(host), "sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0"], check=True)
        yield result


@contextlib.contextmanager
def cluster(nodes, rates, agent_flags=(), part=1, common_flags=(), buffer=1_000_000):
    """An agent per node, a summation server on each further host; all assume that `part` of their link's rate is payload.

    `common_flags` are for agents and servers.
    """
    def bandwidth(rate):
        return f"--bandwidth={int(rate * 1e6 * part)}bps"
    with network(rates, buffer) as hosts, tempfile.TemporaryDirectory() as folder, Cluster(
            folder, nodes, 1, network=hosts, agent_flags=[*agent_flags, *common_flags], summation_flags=common_flags,
            flags_of_node=lambda node: [bandwidth(rates[node])]) as result:
        for rate in rates[nodes:]:
            result.await_ports(result.start_summation(bandwidth(rate)))
        yield result


def add_content_options(parser, profiles):
    """Options of the benchmarks that can push recorded gradients: the contents, and the encoding of the transfer."""
    parser.add_argument("--contents", choices=[*profiles, "random"], default="random", help="of the tensors: a recording of bench/contents")
    parser.add_argument("--wire-encoding", choices=("auto", "raw", "both"),
                        help="passed to agents and servers; both: raw and auto in turn, whose checksums must not differ")


def encodings(options):
    """The encodings to measure in turn; an entry is None if the services keep their default."""
    return {"both": ["raw", "auto"]}.get(options.wire_encoding, [options.wire_encoding])


def encoding_flags(encoding):
    return [f"--wire-encoding={encoding}"] if encoding else []


def contents_flags(profile, nodes):
    """The flags with which addend-bench fills its tensors; records the gradients if they are not there."""
    return [] if profile == "random" else [f"--contents={recordings.record(profile, nodes)}"]


def check_same_bits(program, lines):
    """Ends the program unless all lines, which differ in the encoding alone, have the same checksum."""
    if len({line["checksum"] for line in lines}) > 1:
        found = sorted({f"{line['wire_encoding']} {line['checksum']}" for line in lines})
        raise SystemExit(f"{program}: the checksums differ: {', '.join(found)}")


def run_bench(running, *words):
    """Runs addend-bench as every rank; returns rank 0's output."""
    run = len(running.processes)  # numbers the logs of the runs
    ranks = [running.start(f"bench{run}.rank{rank}", [BIN_DIR / "addend-bench", *words, "--json"], env=running.rank_environment(rank))
             for rank in range(running.nodes)]
    for rank in ranks:
        if rank.wait(1800) != 0:
            raise SystemExit(f"addend-bench {words[0]} failed as {rank.name}:\n{rank.tail()}")
    text = ranks[0].text()
    return json.loads(text[text.index("["):text.rindex("]") + 1])


def goodput_part(mbit):
    """The part of a link's rate that TCP carries as payload, in both directions at once."""
    with network([mbit, mbit]) as hosts:
        listener = subprocess.Popen([*hosts.prefix(1), PYTHON, BENCH / "link_goodput.py", "listen", hosts.address(1)],
                                    stdout=subprocess.PIPE, text=True)
        address = f"{hosts.address(1)}:{listener.stdout.readline().strip()}"
        there = subprocess.run([*hosts.prefix(2), PYTHON, BENCH / "link_goodput.py", "connect", address],
                               capture_output=True, text=True, check=True, timeout=60).stdout
        here = listener.communicate(timeout=60)[0]
    return (float(here) + float(there)) / 2 * 8 / (mbit * 1e6)


def plan(size, nodes, rates, part=1):
    """The answer of `addendctl plan` for a sum of `size` bytes, if `part` of the machines' rates is payload."""
    bandwidths = ",".join(f"{int(rate * 1e6 * part)}bps" for rate in rates)
    command = [BIN_DIR / "addendctl", "plan", "--json", f"--gpu-nodes={nodes}", f"--cpu-nodes={len(rates) - nodes}",
               f"--bytes={size}", f"--bandwidths={bandwidths}"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def t_opt(size, nodes, rates, part=1):
    """The shortest possible time of the sum, in seconds."""
    return plan(size, nodes, rates, part)["t_opt_s"]
