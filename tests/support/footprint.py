"""The resources and the output of a service: figures that must not grow with the number of former jobs."""
import pathlib
import shutil
import sqlite3
import tempfile
import urllib.request

from tests.support import scrape


def _status(process):
    return dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines())


def resident_kib(process):
    return int(_status(process)["VmRSS"].split()[0])


def of_process(process):
    """The footprint of a started service (tests/support/cluster.py)."""
    return {
        "resident KiB": resident_kib(process),
        "descriptors": len(list(pathlib.Path(f"/proc/{process.pid}/fd").iterdir())),
        "threads": int(_status(process)["Threads"]),
        "metric lines": len(scrape.text_of(process).splitlines()),
    }


def of_store(path):
    """The footprint of the scheduler's SQLite database, which it has locked: counts rows in a copy with its write-ahead log."""
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
        copy = pathlib.Path(shutil.copytree(path.parent, folder, dirs_exist_ok=True)) / path.name
        connection = sqlite3.connect(copy)
        rows = connection.execute("SELECT count(*) FROM records").fetchone()[0]
        connection.close()
    return {"store KiB": sum(file.stat().st_size for file in path.parent.iterdir()) // 1024, "store rows": rows}


def status_text(scheduler):
    """The scheduler's answer at /api/status."""
    return urllib.request.urlopen(f"http://127.0.0.1:{scheduler.ports['http']}/api/status", timeout=10).read().decode()
