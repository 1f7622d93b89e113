"""A whole cluster of the real binaries on this machine, on ports that the kernel chooses.

    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=1) as cluster:
        results = cluster.run_ranks("numerics.py", {"sizes": [1, 3]})

At the end every process is killed, even after a failure, and a failed test shows the logs.
ADDEND_BIN_DIR selects the binaries (default: build/bin); with ADDEND_SANITIZED the sanitizers' reports fail the test.
ADDEND_TEST_PYTHON is the trainers' interpreter (default: /usr/bin/python3).
ADDEND_SLOW marks an emulated machine, on which everything takes many times longer.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from tests.support import etcd
from tests.support.ports import free_port
from tests.support.processes import Process, eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("ADDEND_BIN_DIR", ROOT / "build" / "bin"))
SANITIZED = os.environ.get("ADDEND_SANITIZED", "")
TRAINERS = ROOT / "tests" / "cluster" / "trainers"
PYTHON = os.environ.get("ADDEND_TEST_PYTHON", "/usr/bin/python3")
SLOW = bool(SANITIZED or os.environ.get("ADDEND_SLOW"))
# Sanitized binaries run several times slower, and their start takes seconds if many start at once.
PATIENCE = 6 if SLOW else 1
LEASE_FACTOR = 4 if SLOW else 1  # sanitized binaries also send heartbeats late
CROWD = 33  # so many nodes or more make two cores late by seconds, also with heartbeats


def with_scaled_lease(flags, nodes):
    """The scheduler's flags, with the lease scaled for slow binaries; it is 5 s, and 30 s for a crowd, if the flags have no lease."""
    def scaled(match):
        return f"--lease={int(match[1]) * LEASE_FACTOR}s"
    lease = "--lease=30s" if nodes >= CROWD else "--lease=5s"
    return [re.sub(r"^--lease=(\d+)s$", scaled, flag) for flag in [lease, *flags]]


def sanitizer_environment(folder=None):
    """The sanitizers' options: each report goes to its own file in `folder`, or to standard error without a folder."""
    support = ROOT / "tests" / "support"
    log = f"log_path={folder}/sanitizer:" if folder else ""
    return {
        # AddressSanitizer cannot check vectors that packaged libraries fill without annotations.
        "ASAN_OPTIONS": f"{log}detect_leaks=1:abort_on_error=0:detect_container_overflow=0",
        "UBSAN_OPTIONS": f"{log}print_stacktrace=1:suppressions={support}/ubsan.supp",
        "LSAN_OPTIONS": f"suppressions={support}/lsan.supp:print_suppressions=0",
        "TSAN_OPTIONS": f"{log}suppressions={support}/tsan.supp:print_suppressions=0:history_size=4",
    }


class RankResult:
    """The outcome of a trainer process: `result` is the JSON document passed to common.finish()."""

    def __init__(self, rank, process, result):
        self.rank = rank
        self.returncode = process.returncode
        self.log = process.text()
        self.result = result


class Ranks:
    """The trainer processes of a run, which may still be running."""

    def __init__(self, processes, folder):
        self.processes = processes  # {rank: Process}
        self.folder = folder

    def wait_at(self, gate, timeout=60):
        """Waits until all living ranks are at common.gate(gate)."""
        def all_there():
            for rank, process in self.processes.items():
                if process.returncode is not None:
                    raise AssertionError(f"rank {rank} ended before gate '{gate}':\n{process.tail()}")
            return all((self.folder / f"{gate}.{rank}").exists() for rank in self.processes)
        eventually(all_there, timeout * PATIENCE, f"every rank at gate '{gate}'")

    def open(self, gate):
        (self.folder / f"{gate}.open").touch()

    def join(self, timeout=60, expect=0):
        """Waits for all ranks; fails if a rank hangs, or ends with another status than `expect` (None: any)."""
        deadline = time.monotonic() + timeout * PATIENCE
        results = []
        for rank, process in sorted(self.processes.items()):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} hangs after {timeout * PATIENCE} s:\n{process.tail()}" + "".join(
                    f"\nrank {other} (status {peer.returncode}):\n{peer.tail()}" for other, peer in self.processes.items() if other != rank
                )) from None
            path = self.folder / f"result.{rank}.json"
            result = json.loads(path.read_text()) if path.exists() else None
            results.append(RankResult(rank, process, result))
        if expect is not None:
            for outcome in results:
                assert outcome.returncode == expect, (
                    f"rank {outcome.rank} ended with status {outcome.returncode}, not {expect}:\n{outcome.log[-3000:]}")
        return results


class Cluster:
    def __init__(self, folder, nodes=1, local_size=1, cpu_servers=0, shards=1, job="job", store="memory",
                 scheduler_flags=(), summation_flags=(), agent_flags=(), network=None, user=None, bin_dir=None, schedulers=1,
                 flags_of_node=lambda node: (), flags_of_server=lambda index: (), common_flags=(), beside=None, shared_memory="off", starting_s=None):
        """`network`: a netns.Network whose hosts 1..nodes carry the agents and the next hosts the CPU servers; without it all processes are
        on 127.0.0.1. `user`: a numeric user id that runs every process. Several schedulers share an etcd, which the cluster starts.
        `common_flags`: of every service; TLS flags among them also of addendctl. `beside`: another cluster, whose scheduler and CPU servers
        this cluster's job also uses. `shared_memory`: as of the services; off, since most tests are about machines. `starting_s`: within
        which agents have to serve: 10, and 60 for a crowd.
        """
        self.shared_memory, self.starting_s = shared_memory, starting_s or (60 if nodes >= CROWD else 10)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="c", dir=folder))
        self.nodes, self.local_size, self.cpu_servers = nodes, local_size, cpu_servers
        self.shards, self.job, self.store = shards, job, store
        self.flags = {"scheduler": with_scaled_lease(scheduler_flags, nodes), "summation": list(summation_flags), "agent": list(agent_flags)}
        for kind in self.flags:
            self.flags[kind] += common_flags
        self.ctl_flags = [flag for flag in common_flags if flag.startswith("--tls-")]
        self.flags_of_node = flags_of_node  # further flags of a node's agent
        self.flags_of_server = flags_of_server  # further flags of a CPU server
        self.network, self.user, self.beside = network, user, beside
        self.bin_dir = pathlib.Path(bin_dir or BIN_DIR)
        self.processes = []
        self.scheduler = None  # set if there is only one
        self.schedulers = [None] * schedulers  # all schedulers, one of which is the leader
        self.servers = []
        self.agents = {}
        self._runs = 0
        if user is not None:
            os.chown(self.folder, user, user)

    # ---- starting and ending ----
    def __enter__(self):
        try:
            if self.beside:
                self.scheduler_address = self.beside.scheduler_address
            elif len(self.schedulers) > 1:
                self._start_schedulers()
            else:
                self.start_scheduler()
            self.servers = [self.start_summation() for _ in range(self.cpu_servers)]
            for server in self.servers:
                self.await_ports(server)
            for node in range(self.nodes):
                self.start_agent(node)
            for agent in self.agents.values():
                self.await_ports(agent, self.starting_s)
        except BaseException:
            self._end(failed=True)
            raise
        return self

    def __exit__(self, kind, value, traceback):
        self._end(failed=kind is not None)

    def _end(self, failed):
        if SANITIZED and not failed:  # leaks are reported only at a regular exit
            # Schedulers last: a server hands over its partitions, and waits for the scheduler's confirmation.
            for process in sorted(reversed(self.processes), key=lambda one: one.name.startswith(("scheduler", "etcd"))):
                if process.returncode is None:
                    process.stop(60)
        for process in self.processes:
            process.kill()
        if failed:
            self.show_logs()
        reports = self.sanitizer_reports()
        if not failed:
            shutil.rmtree(self.folder, ignore_errors=True)
        assert not reports, "a sanitizer reports:\n" + "\n".join(reports)

    def sanitizer_reports(self):
        return [path.read_text(errors="replace")[:6000] for path in sorted(self.folder.glob("sanitizer*"))]

    def show_logs(self):
        for process in self.processes:
            print(f"---- {process.name} (pid {process.pid}, status {process.returncode}): {' '.join(process.command)}")
            print(process.tail())

    def environment(self, **more):
        env = {key: value for key, value in os.environ.items() if not key.startswith("ADDEND_")}
        env.update(sanitizer_environment(self.folder))
        env["ADDEND_SHARED_MEMORY"] = str(self.shared_memory)
        env.update({key: str(value) for key, value in more.items()})
        return env

    def start(self, name, command, host=None, env=None, cwd=None, stdout=None):
        """Starts any program as a part of the cluster, which kills it at the end, on a host of the network if there is a network."""
        if self.network and host is not None:
            command = [*self.network.prefix(host), *command]
        process = Process(name, command, self.folder / f"{name}.log", env or self.environment(), cwd, stdout, self.user)
        self.processes.append(process)
        return process

    def start_scheduler(self, *flags):
        address = self.network.gateway if self.network else "127.0.0.1"
        self.scheduler = self.start_service(
            "scheduler", "scheduler", 0, [f"--listen={address}:{self._scheduler_port()}", f"--store={self.store}", *flags])
        self.await_ports(self.scheduler)
        self.scheduler_address = f"{address}:{self.scheduler.ports['grpc']}"

    def _start_schedulers(self):
        host = self.network.gateway if self.network else "127.0.0.1"
        self.etcd = etcd.start(self.folder, host, self.network.prefix(0) if self.network else ())
        self.processes.append(self.etcd)
        self.store = f"etcd:{self.etcd.address}"
        self.scheduler_address = ",".join(f"{host}:{free_port()}" for _ in self.schedulers)
        for index in range(len(self.schedulers)):
            self.start_one_scheduler(index)
        self.leader()

    def start_one_scheduler(self, index):
        address = self.scheduler_address.split(",")[index]
        self.schedulers[index] = self.start_service(
            "scheduler", f"scheduler{index}", 0, [f"--listen={address}", f"--store={self.store}"])

    def leader(self):
        """The index of the leading scheduler; waits until a scheduler leads."""
        def leads():
            return [str(index) for index, process in enumerate(self.schedulers)
                    if process.returncode is None and process.port_file.exists()]
        return int(eventually(leads, 30 * PATIENCE, "a scheduler that leads")[0])

    def _scheduler_port(self):
        """A restarted scheduler keeps its address, so no other process may take the port meanwhile."""
        if self.scheduler:
            return self.scheduler.ports["grpc"]
        return 0 if self.network else free_port()  # in a network all processes are this cluster's

    def start_summation(self, *flags, host=None):
        index = sum(process.name.startswith("summation") for process in self.processes)
        host = host or self.nodes + 1 + index
        server = self.start_service("summation", f"summation{index}", host, [
            f"--scheduler={self.scheduler_address}", *self._listen(host), f"--shards={self.shards}",
            *self.flags_of_server(index), *flags])
        server.host = host
        return server

    def agent_command_flags(self, node):
        return [
            f"--scheduler={self.scheduler_address}", *self._listen(node + 1), f"--shards={self.shards}", f"--job={self.job}",
            f"--node-rank={node}", f"--num-nodes={self.nodes}", f"--local-size={self.local_size}",
            f"--socket={self.socket(node)}"]

    def start_agent(self, node, *flags, name=None):
        self.agents[node] = self.start_service(
            "agent", name or f"agent{node}", node + 1, [*self.agent_command_flags(node), *self.flags_of_node(node), *flags])
        return self.agents[node]

    def _listen(self, host):
        address = self.network.address(host) if self.network else "127.0.0.1"
        return [f"--listen={address}:0", f"--data-listen={address}:0", f"--advertise={address}"]

    def start_service(self, kind, name, host, flags):
        ports = self.folder / f"{name}.ports"
        ports.unlink(missing_ok=True)
        protected = any(flag.startswith("--tls-cert=") for flag in (*flags, *self.flags[kind]))
        process = self.start(name, [
            self.bin_dir / f"addend-{kind}", *([] if protected else ["--insecure"]), *flags, "--http=127.0.0.1:0", "--health-listen=127.0.0.1:0", f"--port-file={ports}",
            *self.flags[kind]], host)
        process.port_file = ports
        return process

    def await_ports(self, process, timeout=10):
        """Waits until the service is serving, and stores its ports in process.ports."""
        def serving():
            assert process.returncode is None, f"{process.name} ended with status {process.returncode}:\n{process.tail()}"
            return process.port_file.exists()
        eventually(serving, timeout * PATIENCE, f"{process.name}'s port file")
        process.ports = json.loads(process.port_file.read_text())

    def socket(self, node):
        return self.folder / f"agent{node}.sock"

    # ---- trainers ----
    def rank_environment(self, rank, size=None, **more):
        node, local_rank = divmod(rank, self.local_size)
        return self.environment(**{**dict(
            RANK=rank, WORLD_SIZE=size or self.nodes * self.local_size, LOCAL_RANK=local_rank,
            LOCAL_WORLD_SIZE=self.local_size, GROUP_RANK=node, ADDEND_SOCKET=self.socket(node),
            ADDEND_LIBRARY=os.environ.get("ADDEND_LIBRARY", ROOT / "build" / "lib" / "libaddend.so"),
            PYTHONPATH=f"{ROOT / 'python'}:{ROOT}", PYTHONDONTWRITEBYTECODE=1, OMP_NUM_THREADS=1, OPENBLAS_NUM_THREADS=1), **more})

    def start_ranks(self, script, parameters=None, ranks=None, env=None):
        """Starts trainers of tests/cluster/trainers (or of any path) with torchrun's variables.

        common.parameters() returns `parameters` to them; `env`: further variables, or a function of the rank.
        """
        self._runs += 1
        folder = self.folder / f"run{self._runs}"
        folder.mkdir()
        if self.user is not None:
            os.chown(folder, self.user, self.user)
        (folder / "parameters.json").write_text(json.dumps(parameters or {}))
        processes = {}
        for rank in range(self.nodes * self.local_size) if ranks is None else ranks:
            more = env(rank) if callable(env) else env or {}
            processes[rank] = self.start(
                f"run{self._runs}.rank{rank}", [PYTHON, TRAINERS / script],
                env=self.rank_environment(rank, **{"ADDEND_TEST_FOLDER": folder, **more}))
        return Ranks(processes, folder)

    def run_ranks(self, script, parameters=None, timeout=60, expect=0, ranks=None, env=None):
        """Runs trainers to their end and returns a RankResult per rank."""
        return self.start_ranks(script, parameters, ranks, env).join(timeout, expect)

    # ---- looking ----
    def addendctl(self, *arguments):
        """The JSON document that addendctl prints."""
        command = [*(self.network.prefix(0) if self.network else []), self.bin_dir / "addendctl", *arguments, f"--scheduler={self.scheduler_address}", "--json", *self.ctl_flags]
        result = subprocess.run(command, capture_output=True, text=True, timeout=20 * PATIENCE, env=self.environment())
        assert result.returncode == 0, f"addendctl {arguments} ended with status {result.returncode}: {result.stderr}"
        return json.loads(result.stdout)


def run_binary(name, *arguments, timeout=20, env=None):
    """Runs a binary outside of any cluster; returns subprocess's result with texts."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ADDEND_")}
    environment.update({**sanitizer_environment(), "ADDEND_INSECURE": "true", **(env or {})})
    return subprocess.run([BIN_DIR / name, *map(str, arguments)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=timeout * PATIENCE, env=environment)
