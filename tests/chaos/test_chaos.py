"""Servers are killed, stopped, cut off, drained and added, and schedulers killed and restarted, at random moments while ranks push.

After every round each rank compares its results with the reference, bit for bit. The seed is printed; the same seed gives
the same events: pytest tests/chaos --chaos-seed=SEED --chaos-events=N. The cluster is in network namespaces and has two
schedulers with an etcd, where the machine has these.
"""
import contextlib
import random
import signal
import time

from tests.support import etcd, netns
from tests.support.cluster import Cluster, PATIENCE
from tests.support.rounds import completed, finish, goes_on, running

LEASE_S = 4
NODES = 4
MAX_SERVERS = 4


class Chaos:
    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)
        self.servers = list(cluster.servers)  # that run, are stopped or cut off
        self.stopped, self.cut_off = [], []
        self.log = []

    def event(self):
        choices = [self.restart_scheduler]
        running = [server for server in self.servers if server not in self.stopped and server not in self.cut_off]
        if running:
            choices += [self.kill, self.kill, self.drain, self.stop]
            choices += [self.cut] if self.cluster.network else []
        if self.stopped:
            choices += [self.resume, self.resume]
        if self.cut_off:
            choices += [self.mend, self.mend]
        if len(self.servers) < MAX_SERVERS:
            choices += [self.add] * (4 - len(running))
        event = self.random.choice(choices)
        self.log.append(event.__name__)
        event(running)

    def kill(self, running):
        victim = self.random.choice(running)
        self.servers.remove(victim)
        victim.kill()

    def drain(self, running):
        victim = self.random.choice(running)
        self.servers.remove(victim)
        victim.signal(signal.SIGTERM)

    def stop(self, running):
        victim = self.random.choice(running)
        self.stopped.append(victim)
        victim.signal(signal.SIGSTOP)

    def resume(self, running):
        del running
        victim = self.random.choice(self.stopped)
        self.stopped.remove(victim)
        victim.signal(signal.SIGCONT)

    def cut(self, running):
        victim = self.random.choice(running)
        self.cut_off.append(victim)
        self.cluster.network.cut(victim.host)

    def mend(self, running):
        del running
        victim = self.random.choice(self.cut_off)
        self.cut_off.remove(victim)
        self.cluster.network.mend(victim.host)

    def add(self, running):
        del running
        taken = {server.host for server in self.servers}
        host = next(host for host in range(NODES + 1, NODES + 1 + MAX_SERVERS) if host not in taken)
        self.servers.append(self.cluster.start_summation(host=host))

    def restart_scheduler(self, running):
        del running
        number = self.random.choice([signal.SIGKILL, signal.SIGTERM])
        index = self.random.randrange(len(self.cluster.schedulers))
        pause = self.random.uniform(0, 0.3)
        process = self.cluster.scheduler or self.cluster.schedulers[index]
        process.signal(number)
        process.wait(10 * PATIENCE)
        time.sleep(pause)
        if self.cluster.scheduler:
            self.cluster.start_scheduler()
        else:
            self.cluster.start_one_scheduler(index)


def test_the_same_bits_whatever_happens(tmp_path, chaos_seed, chaos_events):
    without = [reason for reason in (netns.unavailable(), etcd.unavailable()) if reason]
    print(f"seed {chaos_seed}", *without, sep="; ")
    with contextlib.ExitStack() as stack:
        network = None if netns.unavailable() else stack.enter_context(netns.Network(NODES + MAX_SERVERS, "10gbit"))
        cluster = stack.enter_context(Cluster(
            tmp_path, NODES, cpu_servers=2, shards=2, store=f"sqlite:{tmp_path}/scheduler.db", network=network,
            schedulers=1 if etcd.unavailable() else 2, scheduler_flags=[f"--lease={LEASE_S}s"]))
        ranks = running(cluster)
        chaos = Chaos(cluster, chaos_seed)
        for number in range(chaos_events):
            chaos.event()
            time.sleep(chaos.random.choice([0, 0.05, 0.3]))  # the next event may come in the middle of the recovery
            if number % 3 == 2:
                try:
                    goes_on(ranks, 3, 60, f"further rounds after {chaos.log[-6:]} (seed {chaos_seed}, event {number})")
                except AssertionError:
                    print(cluster.addendctl("why", cluster.job))
                    raise
        for server in chaos.stopped:
            server.signal(signal.SIGCONT)
        finish(ranks)
        print(f"{chaos_events} events, {completed(ranks)} rounds, no wrong bit: "
              + ", ".join(f"{name} {chaos.log.count(name)}" for name in sorted(set(chaos.log))))
