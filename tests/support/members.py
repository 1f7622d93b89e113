"""A scheduler with the control planes of many members in one process (addend-bench-members)."""
import json
import pathlib
import tempfile

from tests.support.cluster import BIN_DIR
from tests.support.processes import Process, eventually


def measure(nodes, cpu_servers, model="bert-large", beat="10s", store="memory", scheduler_flags=(), patience=600):
    """The steps that addend-bench-members has made, each a dict; AssertionError with its last words if it did not make all."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        ports, place = folder / "ports", "memory" if store == "memory" else f"sqlite:{folder}/store.db"
        scheduler = Process("scheduler", [
            BIN_DIR / "addend-scheduler", "--insecure", "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--health-listen=127.0.0.1:0",
            f"--store={place}", f"--port-file={ports}", "--log-level=error", *scheduler_flags], folder / "scheduler.log")
        try:
            eventually(ports.exists, 30, "the scheduler's ports")
            port = json.loads(ports.read_text())["grpc"]
            members = Process("members", [
                BIN_DIR / "addend-bench-members", f"--scheduler=127.0.0.1:{port}", f"--pid={scheduler.pid}", f"--nodes={nodes}",
                f"--cpu-servers={cpu_servers}", f"--model={model}", f"--beat={beat}"], folder / "members.log", stdout=folder / "steps")
            try:
                status = members.wait(patience)
            finally:
                members.kill()
        finally:
            scheduler.kill()
        steps = [json.loads(line) for line in (folder / "steps").read_text().splitlines()]
        assert status == 0, f"after {[step['step'] for step in steps]}: {members.tail()}\n{scheduler.tail()}"
        return steps
