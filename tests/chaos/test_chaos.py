"""Servers are killed, stopped, drained and added, and the scheduler is killed and restarted, at random moments while ranks push.

After every round each rank compares its results with the reference, bit for bit. The seed is printed; the same seed gives
the same events: pytest tests/chaos --chaos-seed=SEED --chaos-events=N
"""
import random
import signal
import time

from tests.support.cluster import Cluster, PATIENCE
from tests.support.rounds import completed, finish, goes_on, running

LEASE_S = 4
MAX_SERVERS = 4


class Chaos:
    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)
        self.servers = list(cluster.servers)  # that run, or are stopped
        self.stopped = []
        self.log = []

    def event(self):
        choices = [self.restart_scheduler]
        running = [server for server in self.servers if server not in self.stopped]
        if running:
            choices += [self.kill, self.kill, self.drain, self.stop]
        if self.stopped:
            choices += [self.resume, self.resume]
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

    def add(self, running):
        del running
        server = self.cluster.start_summation()
        self.cluster.await_ports(server)
        self.servers.append(server)

    def restart_scheduler(self, running):
        del running
        self.cluster.scheduler.kill()
        time.sleep(self.random.uniform(0, 0.3))
        self.cluster.start_scheduler()


def test_the_same_bits_whatever_happens(tmp_path, chaos_seed, chaos_events):
    print(f"seed {chaos_seed}")
    with Cluster(tmp_path, nodes=4, cpu_servers=2, shards=2, store=f"sqlite:{tmp_path}/scheduler.db",
                 scheduler_flags=[f"--lease={LEASE_S * PATIENCE}s"]) as cluster:
        ranks = running(cluster)
        chaos = Chaos(cluster, chaos_seed)
        for number in range(chaos_events):
            chaos.event()
            time.sleep(chaos.random.choice([0, 0.05, 0.3]))  # the next event may come in the middle of the recovery
            if number % 3 == 2:
                goes_on(ranks, 3, 40, f"further rounds after {chaos.log[-6:]} (seed {chaos_seed}, event {number})")
        for server in chaos.stopped:
            server.signal(signal.SIGCONT)
        finish(ranks)
        print(f"{chaos_events} events, {completed(ranks)} rounds, no wrong bit")
