"""Connections by the thousand, from a process of its own (tests/security/flood.py)."""
import contextlib
import subprocess
import sys

from tests.support.cluster import ROOT
from tests.support.processes import lowest_priority


@contextlib.contextmanager
def flood(port, connections, kind="silent"):
    """As long as this lasts. The process has the lowest priority: its own work is not what is to be seen."""
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
