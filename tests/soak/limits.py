"""How much more each figure may be at the end of a soak than after its first jobs."""

# figure: (factor, summand), the allowed growth of its first value
LIMITS = {
    # malloc's own memory differs by 1 or 2 MiB between equal runs, mostly within the next two hundred jobs. A leak of 1 KiB per job over 2,000 jobs
    # would be as much; the limit notices 2 KiB per job, or a partition of every fiftieth job.
    "resident KiB": (1, 3584),
    # Of a job that is gone there is no connection.
    "descriptors": (1, 0),
    # gRPC keeps a few that have nothing to do; a thread for each job would be dozens after fifty.
    "threads": (1, 4),
    # Counters and histograms of the service itself: values labelled by job vanish with the job.
    "metric lines": (1, 0),
    # The database and its log, which begins again after 1,000 pages of 4 KiB: both are as large after fifty jobs as they get.
    "store KiB": (1, 256),
    # The numbers that were given, the two servers, and no job.
    "store rows": (1, 0),
    # The last 200 events, some with longer texts than others.
    "status bytes": (1.1, 0),
    # Every job that comes and goes causes lines, but later jobs cause no more of them: a line for each former job would be forty times as much in the
    # end. The closing of links and the leaving of servers vary, and of more than a hundred lines a second some are left out, so slower jobs cause
    # more lines each.
    "log bytes per job": (2, 100),
}


def compare(first, last, between):
    """A row for each figure of each service; `between`: how many jobs there were from `first` to `last`."""
    rows = []
    for (service, figure), before in first.items():
        factor, summand = LIMITS[figure]
        after = last[service, figure]
        rows.append({
            "service": service, "figure": figure, "first": before, "end": after, "limit": round(factor * before + summand),
            "ratio": round(after / max(before, 1), 3), "per job": round((after - before) / between, 3)})
    return rows


def table(rows, first, end):
    heads = ["service", "figure", f"after {first}", f"after {end}", "limit", "ratio", "more per job"]
    lines = [heads, *([str(value) for value in row.values()] for row in rows)]
    return "\n".join(f"{line[0]:<10} {line[1]:<18}" + "".join(f"{value:>14}" for value in line[2:]) for line in lines)
