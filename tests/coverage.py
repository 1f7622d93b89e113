"""Prints the summary of gcovr as the table of scripts/coverage."""
import collections
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

FOLDERS = ("lib/summation", "services/worker_agent", "services/scheduler")
# The steps of docs/recovery.md: each file takes part in them and hardly has another purpose.
RECOVERY = {
    "lib/summation": ("collector.cc", "job_shard.cc", "latest_partition.cc", "latest_partitions.cc", "open_round.cc", "ownership.cc", "partition.cc",
                      "summed_partitions.cc", "value_copies.cc"),
    "services/worker_agent": ("departures.cc", "generation_state.cc", "node_frames.cc", "plan_follower.cc", "servers.cc"),
    "services/scheduler": ("agreements.cc", "departures.cc", "handover.cc", "leases.cc", "lifecycle.cc", "placement.cc", "replacement.cc", "reservations.cc",
                           "restore.cc", "roster.cc", "stale_store.cc"),
}
COLUMNS = ("line_covered", "line_total", "branch_covered", "branch_total")


def is_recovery(path):
    folder, _, name = path.rpartition("/")
    return name in RECOVERY.get(folder, ())


def row(name, counts):
    lines, branches = (f"{100 * counts[covered] / counts[total]:.1f}" if counts[total] else "-" for covered, total in (COLUMNS[:2], COLUMNS[2:]))
    return f"{name:55} {lines:>7} {counts['line_total']:6} {branches:>9} {counts['branch_total']:9}"


def table(files):
    """The lines of the table. files: those of a summary in gcovr's JSON."""
    sums = collections.defaultdict(collections.Counter)
    lines = [f"{'':55} {'lines %':>7} {'lines':>6} {'branches %':>9} {'branches':>8}"]
    for one in sorted(files, key=lambda one: one["filename"]):
        path, counts = one["filename"], {column: one[column] for column in COLUMNS}
        lines.append(row(("* " if is_recovery(path) else "  ") + path, counts))
        for name in [folder for folder in FOLDERS if path.startswith(f"{folder}/")] + ["recovery (*)"] * is_recovery(path):
            sums[name].update(counts)
    return lines + [row(name, sums[name]) for name in (*FOLDERS, "recovery (*)") if name in sums]


if __name__ == "__main__":
    gone = [f"{folder}/{name}" for folder, names in RECOVERY.items() for name in names if not (ROOT / folder / name).is_file()]
    if gone:
        sys.exit(f"coverage: RECOVERY in tests/coverage.py names files that are gone: {', '.join(gone)}")
    with open(sys.argv[1], encoding="utf-8") as summary:
        print("\n".join(table(json.load(summary)["files"])))
