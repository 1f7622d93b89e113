"""Ranks that push and compare every result with the reference, in a loop until finish() (trainers/rounds.py, or a script that reports in
the same way).
"""
from tests.support.cluster import PATIENCE
from tests.support.processes import eventually


def running(cluster, script="rounds.py", **parameters):
    ranks = cluster.start_ranks(script, parameters)
    ranks.wait_at("running")
    ranks.open("running")
    return ranks


def completed(ranks, of=None):
    """The number of rounds that every rank, or each rank in `of`, has completed."""
    return min(int((ranks.folder / f"rounds.{rank}").read_text() or 0) for rank in of or ranks.processes)


def goes_on(ranks, rounds=5, timeout=20, what="further rounds on every rank", of=None):
    before = completed(ranks, of)
    eventually(lambda: completed(ranks, of) >= before + rounds, timeout * PATIENCE, what)


def finish(ranks):
    ranks.open("stop")
    for outcome in ranks.join(60):
        assert outcome.result["error"] is None, outcome.result
        assert outcome.result["wrong"] == [], "(round, tensor) with other bits than the reference"
