"""A training run of the demo: a cluster of processes on this machine, from start to checksum."""

import json
import os
import pathlib
import socket
import subprocess
import time

from processes import DemoError, Processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "bin"
EXAMPLE = ROOT / "examples" / "train_char_transformer.py"
PYTHON = "/usr/bin/python3"
JOB = "demo"
_STATUS_EVERY_S = 1.0
# The limit between two steps, on the slowest machine; the first step includes the start of PyTorch.
_STEP_LIMIT_S = 120


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Training:
    """`nodes` agents with a trainer each, and `cpu_servers` summation servers beside them.

    After step `kill_step` the first CPU server is killed, and after `add_step` another is started; `news` gets a line for each event when
    it has happened.
    """

    def __init__(self, folder, nodes, cpu_servers, steps, checkpoint_step=None, kill_step=None, add_step=None):
        folder.mkdir()
        self.folder = folder
        self.nodes = nodes
        self.cpu_servers = cpu_servers
        self.steps = steps
        self.checkpoint_step = checkpoint_step
        self.kill_step = kill_step if cpu_servers else None
        self.add_step = add_step if cpu_servers else None
        self.news = []
        self.progress = []  # rank 0's lines
        self.servers = []  # from addendctl status
        self._scheduler = None
        self._cpu_servers = []  # the CPU servers' processes
        self._cpu_names = {}  # by server_id
        self._progress_file = folder / "progress"
        self._checksum_file = folder / "checksum"
        self._read = 0

    def checksum(self, step=None):
        path = self._checksum_file if step is None else f"{self._checksum_file}.{step}"
        return pathlib.Path(path).read_text().strip()

    def run(self, on_change):
        """Trains to the end; calls on_change(self) whenever the displayed state has changed."""
        with Processes(self.folder) as processes:
            self._start_cluster(processes)
            trainers = self._start_trainers(processes)
            self._watch(processes, trainers, on_change)

    def _start_cluster(self, processes):
        scheduler = processes.start_service(
            "scheduler", [BIN / "addend-scheduler", "--insecure", "--listen=127.0.0.1:0", "--store=memory"]
        )
        self._scheduler = f"127.0.0.1:{processes.await_ports(*scheduler)['grpc']}"
        for _ in range(self.cpu_servers):  # sequentially, so that their ids have this order
            processes.await_ports(*self._start_server(processes))
        started = [
            processes.start_service(f"agent {node}", [BIN / "addend-agent", *self._common_flags(), *own])
            for node, own in enumerate(map(self._agent_flags, range(self.nodes)))
        ]
        for service in started:
            processes.await_ports(*service)

    def _start_server(self, processes):
        name = f"server {len(self._cpu_servers)}"
        service = processes.start_service(name, [BIN / "addend-summation", *self._common_flags()])
        self._cpu_servers.append(service[0])
        return service

    def _common_flags(self):
        return [
            f"--scheduler={self._scheduler}",
            "--insecure",
            "--listen=127.0.0.1:0",
            "--data-listen=127.0.0.1:0",
            "--advertise=127.0.0.1",
            "--shards=1",
        ]

    def _agent_flags(self, node):
        return [
            f"--job={JOB}",
            f"--node-rank={node}",
            f"--num-nodes={self.nodes}",
            "--local-size=1",
            f"--socket={self._socket(node)}",
        ]

    def _socket(self, node):
        return self.folder / f"agent{node}.sock"

    def _start_trainers(self, processes):
        command = [
            PYTHON,
            EXAMPLE,
            f"--steps={self.steps}",
            f"--progress-file={self._progress_file}",
            f"--checksum-file={self._checksum_file}",
        ]
        if self.checkpoint_step is not None:
            command.append(f"--checkpoint-step={self.checkpoint_step}")
        env = {k: v for k, v in os.environ.items() if not k.startswith("ADDEND_")}
        env.update(
            WORLD_SIZE=str(self.nodes),
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
            USE_LIBUV="0",  # Debian 13's PyTorch has no libuv, and asks for it by default
            PYTHONPATH=str(ROOT / "python"),
            ADDEND_LIBRARY=str(ROOT / "build" / "lib" / "libaddend.so"),
        )
        return [
            processes.start(
                f"trainer {rank}",
                command,
                dict(env, RANK=str(rank), GROUP_RANK=str(rank), ADDEND_SOCKET=self._socket(rank)),
            )
            for rank in range(self.nodes)
        ]

    def _watch(self, processes, trainers, on_change):
        next_status = last_step = time.monotonic()
        while any(trainer.status is None for trainer in trainers):
            processes.check()
            now = time.monotonic()
            if self._read_progress():
                last_step = now
                self._change_servers(processes)
                on_change(self)
            if now - last_step > _STEP_LIMIT_S:
                logs = "\n".join(f"{p.name}:\n{p.tail(3)}" for p in processes.all)
                raise DemoError(f"no step has ended for {_STEP_LIMIT_S} s; the last lines:\n{logs}")
            if now >= next_status:
                self._read_status()
                on_change(self)
                next_status = time.monotonic() + _STATUS_EVERY_S
            time.sleep(0.05)
        processes.check()
        self._read_status()
        self._read_progress()
        on_change(self)

    def _change_servers(self, processes):
        done = self.progress[-1]["step"]
        if self.kill_step and done >= self.kill_step:
            self.kill_step = None
            self._cpu_servers[0].kill_on_purpose()
            self.news.append(f"CPU server 0 was killed after step {done}; the others take over what it summed.")
        if self.add_step and done >= self.add_step:
            self.add_step = None
            self._start_server(processes)
            self.news.append(
                f"CPU server {len(self._cpu_servers) - 1} was started after step {done}; it is given its share between two rounds."
            )

    def _read_progress(self):
        """Reads rank 0's progress; returns True if there are whole new lines."""
        if not self._progress_file.exists():
            return False
        with open(self._progress_file, encoding="utf-8") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        self.progress += [json.loads(line) for line in whole.splitlines()]
        return bool(whole)

    def _read_status(self):
        command = [BIN / "addendctl", "status", f"--scheduler={self._scheduler}", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if result.returncode != 0:
            raise DemoError(f"addendctl status failed: {result.stderr.strip()}")
        servers = json.loads(result.stdout)["servers"]
        self.servers = sorted(servers, key=lambda s: (s["colocated"], s["node_rank"] or 0, s["server_id"]))
        for server in self.servers:
            if not server["colocated"]:
                self._cpu_names.setdefault(server["server_id"], f"CPU server {len(self._cpu_names)}")

    def traffic(self):
        """[(name, share of the bytes that the present servers have summed)], the CPU servers first."""
        names = []
        for server in self.servers:
            if server["colocated"]:
                names.append(f"node {server['node_rank']}")
            else:
                names.append(self._cpu_names[server["server_id"]])
        return list(zip(names, (server["traffic_share"] for server in self.servers)))
