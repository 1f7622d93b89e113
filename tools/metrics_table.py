#!/usr/bin/python3
"""Prints docs/metrics.md: every metric that the services declare, from the exports of the real binaries.

    PYTHONPATH=. tools/metrics_table.py > docs/metrics.md

Names, types and help come from the declarations; labels come from the samples of a small job with one late rank.
"""
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from tests.support.cluster import Cluster  # noqa: E402
from tests.support.processes import eventually  # noqa: E402
from tests.support.scrape import text_of  # noqa: E402

HEAD = """# Metrics

What the services export at `/metrics`, made by `tools/metrics_table.py` from their own declarations; `tests/cluster/test_metrics.py` fails when this
page is out of date. `job_name` is the name of the Addend job: `job` is Prometheus' own label. Histograms also have `_bucket`, `_sum` and `_count`.
Label sets are bounded by the sizes of jobs and cluster; no metric carries a tensor's name.

The two that decide: `addend_round_seconds` beside `addend_optimal_seconds_total`. The efficiency over a window is
`sum(rate(addend_optimal_seconds_total[5m])) / sum(rate(addend_round_seconds_sum[5m]))`, and `addend_efficiency_ratio` that of the last 20 rounds.
Both are against the shortest time of raw bytes. For the bytes that payloads take on the wire, multiply by `addend_job_optimal_encoded_seconds / addend_job_optimal_seconds`.
"""
PARTS = [("Agents", "agent"), ("Summation servers, and the colocated ones in agents", "summation"), ("Schedulers", "scheduler"),
         ("Every service", "all")]


def families_of(process):
    """{name: (type, help, label names)} of a service."""
    text = text_of(process)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    labels = {name: set() for name in kinds}
    for sample, of_sample in re.findall(r"^(\w+)\{(.*)\} \S+$", text, re.M):
        name = next(name for name in (sample, re.sub(r"_(bucket|sum|count)$", "", sample)) if name in labels)
        labels[name] |= set(re.findall(r'(\w+)="', of_sample)) - {"le"}
    return {name: (kinds[name], helps[name], labels[name]) for name in kinds}


def merged(one, other):
    return {name: (*one.get(name, other.get(name))[:2], one.get(name, ("", "", set()))[2] | other.get(name, ("", "", set()))[2])
            for name in {*one, *other}}


def declared(folder):
    """The families of a scheduler, a CPU server and an agent, while a job waits for a rank and after its rounds."""
    with Cluster(folder, nodes=3, cpu_servers=1, agent_flags=["--bandwidth=1Gbps"], summation_flags=["--bandwidth=1Gbps"]) as cluster:
        services = {"scheduler": cluster.scheduler, "summation": cluster.servers[0], "agent": cluster.agents[0]}
        ranks = cluster.start_ranks("paced.py", {"elements": 1_000_000, "steps": 3, "late_rank": 2, "late_s": 0.5, "gate": "done"})

        def while_one_is_late():
            found = {kind: families_of(process) for kind, process in services.items()}
            return found["summation"]["addend_summation_awaited_contributions"][2] and found

        waiting = eventually(while_one_is_late, 30, "a round that waits")
        ranks.wait_at("done")
        # The scheduler makes its metrics once a second.
        eventually(lambda: families_of(cluster.scheduler)["addend_job_optimal_seconds"][2], 30, "the scheduler's metrics of the job")
        done = {kind: families_of(process) for kind, process in services.items()}
        ranks.open("done")
        ranks.join()
    return {kind: merged(waiting[kind], done[kind]) for kind in services}


def table(families):
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, text, labels) in sorted(families.items()):
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in sorted(labels))} | {text.replace('|', '&#124;')} |")
    return "\n".join(lines)


def page(by_service):
    everywhere = set.intersection(*(set(families) for families in by_service.values()))
    shown = {"all": {name: by_service["agent"][name] for name in everywhere}}
    shown["scheduler"] = by_service["scheduler"]
    shown["summation"] = by_service["summation"]
    shown["agent"] = {name: of for name, of in by_service["agent"].items() if name not in by_service["summation"]}
    parts = [HEAD]
    for title, kind in PARTS:
        families = {name: of for name, of in shown[kind].items() if kind == "all" or name not in everywhere}
        parts.append(f"## {title}\n\n{table(families)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.stdout.write(page(declared(pathlib.Path(temporary))))
