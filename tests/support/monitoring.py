"""The rules and dashboards of the chart, and a real Prometheus that scrapes a test cluster.

    with Prometheus(cluster, tmp_path) as prometheus:
        prometheus.await_alert("AddendJobStalled", job_name="job", node="1")
"""
import json
import pathlib
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import yaml

from tests.support.cluster import PATIENCE, PYTHON, ROOT
from tests.support.ports import free_port
from tests.support.processes import Process, eventually

FILES = ROOT / "deploy" / "helm" / "addend" / "files"
RULES = FILES / "alerts.yaml"
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))

# The factor by which windows are shortened.
SHORTER = 30
# Two scrapes and a spare: a shorter window yields no rate.
SHORTEST_S = 4

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


def _shorter(match):
    return f"{match[1]}{max(SHORTEST_S, int(match[2]) * _UNITS[match[3]] // SHORTER)}s"


def shortened(text):
    """The rules file with every window, offset and `for` a thirtieth as long; thresholds are unchanged."""
    return re.sub(r"(\[|offset |for: )(\d+)([smhd])\b", _shorter, text)


def panels():
    """(dashboard's name, panel) of all panels with content."""
    return [(path.stem, panel) for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]


def annotations():
    """(dashboard's name, expression) of all annotations."""
    return [(path.stem, one["target"]["expr"]) for path in DASHBOARDS for one in json.loads(path.read_text())["annotations"]["list"]]


def variable_metrics():
    """The expressions that supply the values of the dashboards' variables."""
    queries = [one["query"]["query"] for path in DASHBOARDS for one in json.loads(path.read_text())["templating"]["list"]
               if one["type"] == "query"]
    return [re.fullmatch(r"label_values\((.*), \w+\)", query)[1] for query in queries]


def filled(expr, window="10s", **variables):
    """A dashboard's expression as Grafana sends it: with the variables' values, `.*` for variables that are not given."""
    expr = re.sub(r"\$__(rate_interval|interval|range)\b", window, expr)
    return re.sub(r"\$(\w+)", lambda match: variables.get(match[1], ".*"), expr)


class Prometheus:
    """Scrapes every process of a cluster each second and evaluates the shortened rules."""

    def __init__(self, cluster, folder):
        self.folder = pathlib.Path(folder) / "prometheus"
        self.folder.mkdir()
        self._cluster = cluster
        self._prefix = cluster.network.prefix(0) if cluster.network else []

    def _target(self, process):
        host = self._cluster.network.address(process.host) if self._cluster.network and hasattr(process, "host") else "127.0.0.1"
        return f"{host}:{process.ports['http']}"

    def targets(self):
        processes = [self._cluster.scheduler, *self._cluster.servers, *self._cluster.agents.values()]
        return [self._target(process) for process in processes]

    def __enter__(self):
        (self.folder / "rules.yaml").write_text(shortened(RULES.read_text()))
        (self.folder / "prometheus.yaml").write_text(yaml.safe_dump({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "addend", "static_configs": [{"targets": self.targets()}]}]}))
        self._url = f"http://127.0.0.1:{free_port()}"
        self._process = Process("prometheus", [
            *self._prefix, "prometheus", f"--config.file={self.folder}/prometheus.yaml", f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address={self._url.removeprefix('http://')}"], self.folder / "prometheus.log")
        try:
            eventually(self._is_ready, 30 * PATIENCE, f"Prometheus, see {self._process.log}", interval=0.2)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, kind, value, traceback):
        self._process.kill()
        if kind is not None:
            print(f"---- prometheus:\n{self._process.tail()}")

    def _is_ready(self):
        assert self._process.returncode is None, self._process.tail()
        try:
            return "Ready" in self._get("/-/ready")
        except (OSError, subprocess.CalledProcessError):
            return False

    def _get(self, path, **parameters):
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        if self._prefix:  # Prometheus listens inside of a network namespace
            return subprocess.run([*self._prefix, PYTHON, "-c", _GET, url], check=True, capture_output=True, text=True).stdout
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def api(self, path, **parameters):
        """The answer of Prometheus' API; an AssertionError with the reason if it refuses."""
        try:
            answer = json.loads(self._get(f"/api/v1/{path}", **parameters))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr):
        """The present samples of an expression: [(labels, value)]."""
        return [(sample["metric"], float(sample["value"][1])) for sample in self.api("query", query=expr)["result"]]

    def firing(self, name):
        return [labels for labels, _ in self.query(f'ALERTS{{alertname="{name}", alertstate="firing"}}')]

    def await_alert(self, name, timeout=60, **labels):
        """Waits until the alert fires with these labels; returns all firing alerts of its name."""
        def fires():
            found = self.firing(name)
            return found if any(labels.items() <= one.items() for one in found) else None
        return eventually(fires, timeout * PATIENCE, f"{name} with {labels}", interval=0.5)

    def await_silence(self, name, timeout=60):
        eventually(lambda: not self.firing(name), timeout * PATIENCE, f"the end of {name}", interval=0.5)
