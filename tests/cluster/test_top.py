"""addendctl top: live against the real binaries, on a pipe and on a terminal."""
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest

from tests.support.cluster import BIN_DIR, Cluster, PATIENCE, run_binary
from tests.support.ports import free_port
from tests.support.processes import eventually


def start(cluster, *flags, stdout=subprocess.PIPE):
    return subprocess.Popen([BIN_DIR / "addendctl", "top", f"--scheduler={cluster.scheduler_address}", "--interval=200ms", *flags],
                            stdout=stdout, stderr=subprocess.PIPE, text=True, env=cluster.environment())


def next_view(top):
    return json.loads(top.stdout.readline())


def end(top):
    """Ctrl-C; returns the exit status. Reads the views that are left: they may have filled the pipe."""
    top.send_signal(signal.SIGINT)
    try:
        top.communicate(timeout=20 * PATIENCE)
        return top.returncode
    finally:
        top.kill()


def test_rates_show_what_flows_between_two_views(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1, scheduler_flags=["--lease=1s"]) as cluster:
        top = start(cluster, "--json")
        try:
            assert next_view(top)["jobs"][0]["pushed_bps"] is None  # there is no earlier view to compare with
            ranks = cluster.start_ranks("volume.py", {"bytes": 4 << 20, "tensors": 2, "rounds": 100, "hold": True})

            def flows():
                view = next_view(top)
                server = next(server for server in view["servers"] if server["kind"] == "cpu")
                return (view["jobs"][0]["pushed_bps"] or 0) > 0 and (server["in_bps"] or 0) > 0
            eventually(flows, 30 * PATIENCE, "traffic in a view")
            ranks.open("done")
            ranks.join()
        finally:
            assert end(top) == 0


def test_top_waits_for_an_absent_scheduler(tmp_path):
    with Cluster(tmp_path) as cluster:
        top = start(cluster, "--json")
        try:
            assert next_view(top)["away_s"] is None
            cluster.scheduler.kill()
            eventually(lambda: next_view(top)["away_s"], 20 * PATIENCE, "a view that says so")
            away = next_view(top)
            assert away["jobs"][0]["name"] == "job"  # the last known state stays visible
            cluster.start_scheduler()
            eventually(lambda: next_view(top)["away_s"] is None, 20 * PATIENCE, "a view of the new scheduler")
        finally:
            assert end(top) == 0


def test_once_shows_one_interval_and_ends(tmp_path):
    with Cluster(tmp_path, cpu_servers=1) as cluster:
        result = run_binary("addendctl", "top", "--once", "--interval=200ms", f"--scheduler={cluster.scheduler_address}")
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout
        assert re.search(r"^Scheduler \S+: version \S+, up .*, 1 job, 1 CPU server", result.stdout)
        assert re.search(r"^ *1 .* cpu .* 0 bps", result.stdout, re.M)
        assert re.search(r"^job +forming +1 of 1", result.stdout, re.M)


def test_once_without_a_scheduler_ends_with_76():
    result = run_binary("addendctl", "top", "--once", f"--scheduler=127.0.0.1:{free_port()}")
    assert result.returncode == 76 and "does not answer" in result.stderr


def test_a_terminal_is_redrawn_and_its_width_kept(tmp_path):
    with Cluster(tmp_path, cpu_servers=1) as cluster:
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 40, 0, 0))
        top = start(cluster, stdout=inner)
        os.close(inner)
        try:
            seen = b""
            while seen.count(b"\x1b[H") < 3:
                seen += os.read(outer, 65536)
        finally:
            assert end(top) == 0
            os.close(outer)
        views = seen.decode().split("\x1b[H")[1:3]
        for view in views:
            lines = re.sub(r"\x1b\[[KJ]", "", view).splitlines()
            assert 0 < len(lines) <= 11 and max(map(len, lines)) == 40


@pytest.mark.parametrize("flag,words", [("--interval=1ms", "from 100ms to 1h"), ("--interval=x", "--interval=x"), ("extra", "takes no argument")])
def test_wrong_arguments_are_refused(flag, words):
    result = run_binary("addendctl", "top", flag)
    assert result.returncode == 64 and words in result.stderr
