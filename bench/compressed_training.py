"""Training runs with compressed gradients on a cluster of the real binaries, and the bytes that they transfer."""
import pathlib
import re
from urllib.request import urlopen

from tests.support.cluster import PATIENCE
from tests.support.ports import free_port

TRAINER = pathlib.Path(__file__).resolve().parent / "compression_trainer.py"
# Small partitions: with few large partitions, chance would decide how many of them travel to a server on another machine.
AGENT_FLAGS = ["--partition-bytes=16KiB"]
# Settings for the model of 430,000 parameters: SGD that learns in some hundred steps, and two buckets.
SETTINGS = {"lr": 0.1, "momentum": 0.9, "bucket_mb": 1.0, "arguments": {}}


def network_bytes(cluster):
    """The bytes that all agents have sent and received on the data path since their start, headers included."""
    total = 0
    for agent in cluster.agents.values():
        with urlopen(f"http://127.0.0.1:{agent.ports['http']}/metrics", timeout=20 * PATIENCE) as answer:
            metrics = answer.read().decode()
        values = re.findall(r"^addend_agent_network_bytes_total\{[^}]*\} (\S+)$", metrics, re.M)
        assert len(values) == 2, metrics
        total += sum(float(value) for value in values)
    return total


def train(cluster, scheme, steps, warm_up, seed=1, timeout=300, **settings):
    """A run on all ranks: bytes per step, of all steps and after `warm_up`, mean losses, checksums."""
    parameters = {**SETTINGS, "scheme": scheme, "steps": steps, "warm_up": warm_up, "seed": seed, **settings}
    port = free_port()
    ranks = cluster.start_ranks(TRAINER, parameters, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    counted = []
    for name in ("begin", "warm", "end"):
        ranks.wait_at(name, timeout)
        counted.append(network_bytes(cluster))
        ranks.open(name)
    results = [outcome.result for outcome in ranks.join(timeout)]
    losses = [sum(step) / len(results) for step in zip(*(result["losses"] for result in results))]
    begin, warm, end = counted
    return {
        "bytes_per_step": (end - begin) / steps,
        "bytes_per_step_after_warm_up": (end - warm) / (steps - warm_up),
        "losses": losses,
        "checksums": {result["checksum"] for result in results},
    }


def loss_at_the_end(run, steps):
    """The mean loss of the last `steps`: the loss of a single step depends on its batch."""
    return sum(run["losses"][-steps:]) / steps
