"""Thousands of connections, from a separate process (tests/security/flood.py)."""
import contextlib
import subprocess
import sys

from tests.support.cluster import ROOT
from tests.support.processes import lowest_priority


@contextlib.contextmanager
def flood(port, connections, kind="silent"):
    """Floods the port within the context. The process has the lowest priority: its own load must not disturb the test."""
    program = subprocess.Popen([sys.executable, "-m", "tests.security.flood", f"127.0.0.1:{port}", str(connections), kind],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
    try:
        lowest_priority(program.pid)
        assert program.stdout.readline() == "open\n"
        yield
        assert program.poll() is None, "it went on to the end"
    finally:
        program.kill()
        program.communicate()
