"""Jobs come, declare, train, fail and go, against the same scheduler and the same two CPU servers, whose resources must not grow.

Every job has two agents and two trainers, and ends as an entry of ENDINGS. A third server comes and is drained or killed now and then. After the
first fifty jobs and at the end, when no job exists, the figures of the services are compared. They are also written to build/soak.json. `pytest -s
tests/soak --soak-generations=2000 --soak-seed=SEED`.
"""
import concurrent.futures
import json
import random
import shutil
import signal
import subprocess
import time

from tests.soak import limits
from tests.support import footprint
from tests.support.cluster import Cluster, PATIENCE, PYTHON, ROOT
from tests.support.processes import DIES_WITH_THE_TEST, eventually

LEASE_S = 4  # a busy machine stands still for two or three seconds now and then
AT_ONCE = 4
BATCH = 25
FIRST = 2 * BATCH
NODES = 2
TRAINER = ROOT / "tests" / "soak" / "trainer.py"
RESULT = ROOT / "build" / "soak.json"

# The ends of a job, in turn: its trainers' part (trainer.py), and the test's part.
ENDINGS = [
    ("shutdown", "shutdown", None),
    ("a trainer raises", "raise", None),
    ("an agent is killed", "killed", "kill_agent"),
    ("a trainer is killed", "killed", "kill_trainer"),
    ("shapes differ", "mismatch", None),
    ("all agents are killed", "gate", "kill_agents"),
    ("undeclared", "undeclare", None),
    ("a rank leaves early", "leave", None),
    ("looked at", "gate", "look"),
    ("all agents freeze", "gate", "freeze_agents"),
    ("trained twice", "shutdown", "train_again"),
]
FLAGS = [[], ["--audit-one-in=1"], ["--job-secret-file={secret}"], ["--partition-bytes=16KiB"], ["--encrypt-data"],
         ["--colocated-summation=false"], ["--shards=2"]]


class Job:
    """A generation: a new job name, agents, and trainers."""

    def __init__(self, cluster, name, ending, seed):
        self.cluster, self.name, self.ending = cluster, name, ending
        self.random = random.Random(seed)
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self.flags = [flag.format(secret=cluster.folder / "secret") for flag in self.random.choice(FLAGS)]
        self.agents, self.trainers = [], []
        self.frozen = False

    def run(self):
        """Raises unless the job has ended as it should."""
        title, how, then = self.ending
        try:
            for node in range(NODES):
                self.agents.append(self.start_agent(node))
            self.start_trainers(self.parameters(how))
            if then:
                getattr(self, then)()
            self.join(how)
            self.leave()
        except BaseException as e:
            raise AssertionError(f"{self.name} ({title}; {' '.join(self.flags)}): {e}\n{self.logs()}") from e
        finally:
            self.end()
        shutil.rmtree(self.folder)

    def parameters(self, how):
        sizes = [self.random.choice([1, 100, 5_000, 20_000]) for _ in range(4)]
        # Type and operation in trainer.py's notation: a sum, a maximum, a broadcast, and an asynchronous tensor.
        tensors = [("sum", 0, 0, sizes[0]), ("max", 5, 3, sizes[1]), ("broadcast", 1, 4, sizes[2]), ("latest", 0, 5, sizes[3])]
        return {"tensors": tensors, "rounds": self.random.randint(2, 5), "ending": how}

    # ---- the services ----
    def start(self, command, log, env, **pipes):
        with open(self.folder / log, "ab") as errors:
            return subprocess.Popen([*DIES_WITH_THE_TEST, *command], env=env, stderr=errors, **pipes)

    def start_agent(self, node):
        return self.start(
            [self.cluster.bin_dir / "addend-agent", "--insecure", f"--scheduler={self.cluster.scheduler_address}",
             "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0", "--advertise=127.0.0.1", "--http=127.0.0.1:0", "--health-listen=off",
             f"--job={self.name}", f"--node-rank={node}", f"--num-nodes={NODES}", f"--socket={self.socket(node)}", *self.flags],
            f"agent{node}.log", self.cluster.environment(), stdin=subprocess.DEVNULL)

    def start_trainers(self, parameters):
        self.trainers = []
        for rank in range(NODES):
            env = self.cluster.environment(
                RANK=rank, WORLD_SIZE=NODES, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, ADDEND_SOCKET=self.socket(rank),
                ADDEND_CONNECT_TIMEOUT=20 * PATIENCE,
                ADDEND_LIBRARY=ROOT / "build" / "lib" / "libaddend.so")
            # Without the site packages: importing them takes longer than the training.
            self.trainers.append(self.start(
                [PYTHON, "-S", "-E", "-B", TRAINER, json.dumps(parameters)], f"rank{rank}.log", env, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE))

    def socket(self, node):
        return self.folder / f"{node}.sock"

    def await_word(self, rank, word):
        """Every trainer dies in the end, so this ends, too."""
        for line in self.trainers[rank].stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"rank {rank} ended with status {self.trainers[rank].wait()} without the word '{word}'")

    def all_running(self):
        for rank in range(NODES):
            self.await_word(rank, "running")

    # ---- the events ----
    def kill_agent(self):
        self.all_running()
        self.agents[1].kill()
        for rank in range(NODES):
            self.await_word(rank, "lost")

    def kill_trainer(self):
        self.all_running()
        self.trainers[1].kill()
        self.await_word(0, "lost")

    def kill_agents(self):
        self.all_running()
        for process in [*self.agents, *self.trainers]:
            process.kill()

    def freeze_agents(self):
        """They keep their connections, and nobody hears of them; Soak.end_frozen() ends them when their leases are over."""
        self.all_running()
        self.frozen = True
        for agent in self.agents:
            agent.send_signal(signal.SIGSTOP)
        for trainer in self.trainers:
            trainer.kill()

    def look(self):
        self.all_running()
        assert self.cluster.addendctl("trace", f"--job={self.name}")["traceEvents"]
        self.cluster.addendctl("why", self.name)
        for trainer in self.trainers:
            trainer.stdin.write("\n")
            trainer.stdin.flush()

    def train_again(self):
        self.join("shutdown")
        self.start_trainers(self.parameters("shutdown"))

    # ---- its end ----
    def join(self, how):
        killed = self.ending[2] in ("kill_agents", "freeze_agents")
        for rank, trainer in enumerate(self.trainers):
            said = trainer.stdout.read().split()
            status = trainer.wait()
            if killed or (rank == 1 and self.ending[2] == "kill_trainer"):
                assert status == -signal.SIGKILL, f"rank {rank} ended with status {status}"
                continue
            assert status == (1 if how == "raise" and rank == 1 else 0), f"rank {rank} ended with status {status}"
            if how in ("raise", "leave") and rank == 0:
                assert "lost" in said, f"rank 0 was not told that rank 1 is gone: {said}"
            if how != "killed" and how != "gate":  # where that word has been read already
                assert "right" in said, f"rank {rank}: {said}"

    def leave(self):
        """The agents that live end as they should."""
        if self.frozen:
            return
        killed = {"kill_agent": [1], "kill_agents": [0, 1]}.get(self.ending[2], [])
        for node, agent in enumerate(self.agents):
            if node not in killed:
                assert agent.poll() is None, f"agent {node} has ended with status {agent.returncode}"
                agent.terminate()
        for node, agent in enumerate(self.agents):
            status = agent.wait(30 * PATIENCE)
            assert status == (-signal.SIGKILL if node in killed else 0), f"agent {node} ended with status {status}"

    def end(self):
        """Leaves no process, whatever has happened, but frozen agents."""
        for trainer in self.trainers:
            trainer.kill()
            trainer.wait()
            trainer.stdin.close()
            trainer.stdout.close()
        if self.frozen:
            return
        self.kill_all_agents()

    def kill_all_agents(self):
        for agent in self.agents:
            agent.kill()
            agent.wait()

    def logs(self):
        return "\n".join(f"---- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.glob("*.log")))


class Soak:
    def __init__(self, cluster, store, seed):
        self.cluster, self.store = cluster, store
        self.random = random.Random(seed)
        self.services = [("scheduler", cluster.scheduler), *((f"server {i}", server) for i, server in enumerate(cluster.servers))]
        self.done = 0
        self.frozen = []
        self.resident = []  # KiB of every service, after every batch
        self.log_bytes = []  # of every service, after every batch
        self.note()

    def run(self, pool, generations):
        while self.done < generations:
            count = min(BATCH, generations - self.done)
            jobs = [Job(self.cluster, f"job{self.done + i:06}", ENDINGS[(self.done + i) % len(ENDINGS)], self.random.random())
                    for i in range(count)]
            batch = self.done // BATCH
            guest = self.cluster.start_summation() if batch % 2 else None
            for number, one in enumerate(concurrent.futures.as_completed([pool.submit(job.run) for job in jobs])):
                one.result()
                if guest and number == count // 2:
                    guest.signal(signal.SIGTERM if batch % 4 == 1 else signal.SIGKILL)
            if guest:
                guest.wait(60 * PATIENCE)
            self.done += count
            self.note()
            self.end_frozen()
            self.frozen += [job for job in jobs if job.frozen]

    def end_frozen(self):
        """Ends the agents that were frozen in the batch before, whose leases are over."""
        for job in self.frozen:
            job.kill_all_agents()
        self.frozen = []

    def settle(self):
        """Waits until the scheduler has forgotten all jobs. It keeps a job whose agents have all vanished without leaving for twelve leases."""
        eventually(lambda: not json.loads(footprint.status_text(self.cluster.scheduler))["jobs"], 30 * LEASE_S * PATIENCE, "the end of all jobs", 0.5)
        self.end_frozen()

    def note(self):
        self.log_bytes.append({name: process.log.stat().st_size for name, process in self.services})
        self.resident.append({name: footprint.resident_kib(process) for name, process in self.services})

    def figures(self):
        """{(service, figure): number}, when all jobs are gone and nothing moves any more."""
        self.settle()
        last = [None]

        def still():
            now = {name: footprint.of_process(process) for name, process in self.services}
            counts = [[of_one["descriptors"], of_one["threads"]] for of_one in now.values()]
            was, last[0] = last[0], counts
            return now if was == counts else None
        figures = eventually(still, 60 * PATIENCE, "services that rest", interval=1)
        figures["scheduler"].update(footprint.of_store(self.store))
        figures["scheduler"]["status bytes"] = len(footprint.status_text(self.cluster.scheduler))
        # Of the last FIRST jobs: a log has its lines for every job that there was, but not more for those that come later.
        before = self.log_bytes[-1 - FIRST // BATCH]
        for name, process in self.services:
            figures[name]["log bytes per job"] = (self.log_bytes[-1][name] - before[name]) // FIRST
        return {(name, figure): value for name, of_one in figures.items() for figure, value in of_one.items()}


def warm_up(cluster):
    """Takes the memory that comes with first uses: rings in which every shard notes its last 65,536 events, and the library of an encrypted link."""
    job = Job(cluster, "warm-up", ("warm-up", "shutdown", None), 0)
    job.flags = ["--colocated-summation=false", "--encrypt-data"]
    job.parameters = lambda how: {"tensors": [(f"t{i}", 0, 0, 10) for i in range(100)], "rounds": 300, "ending": how}
    job.run()


def test_services_take_no_more_after_many_jobs(tmp_path, soak_generations, soak_seed):
    print(f"seed {soak_seed}")
    (tmp_path / "store").mkdir()
    store = tmp_path / "store" / "scheduler.db"
    start = time.monotonic()
    assert soak_generations >= 2 * FIRST, "--soak-generations: the first hundred jobs are the least with which something can be compared"
    with Cluster(tmp_path, nodes=0, cpu_servers=2, shards=1, store=f"sqlite:{store}", scheduler_flags=[f"--lease={LEASE_S}s"]) as cluster:
        (cluster.folder / "secret").write_text("the secret of the soak's jobs, of thirty-two bytes at least\n")
        (cluster.folder / "secret").chmod(0o600)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            pool.submit(warm_up, cluster).result()
            soak = Soak(cluster, store, soak_seed)
            soak.run(pool, FIRST)
            first = soak.figures()
            soak.run(pool, soak_generations)
            last = soak.figures()
    rows = limits.compare(first, last, soak_generations - FIRST)
    seconds = time.monotonic() - start
    print(f"{soak_generations} jobs in {seconds:.0f} s", limits.table(rows, FIRST, soak_generations), sep="\n")
    RESULT.write_text(json.dumps({"seed": soak_seed, "jobs": soak_generations, "seconds": round(seconds), "rows": rows,
                                  "resident_kib": soak.resident}, indent=1) + "\n")
    grown = [row for row in rows if row["end"] > row["limit"]]
    assert not grown, "these have grown with jobs that are gone:\n" + limits.table(grown, FIRST, soak_generations)
