"""A Prometheus on this machine that scrapes pods as the Prometheus operator would for the chart's monitors.

Debian's Prometheus cannot ask Kubernetes itself, so the discovery is here: all pods with the labels that Prometheus would give
them. What is selected, and what a target is called, is Prometheus' work by the operator's relabelings. It reaches pods through
`kubectl proxy`, so it needs no address of the cluster's network.
"""
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import yaml

from tests.kubernetes.cluster import Failed, Skipped, eventually
from tests.support.ports import free_port

_POD, _SERVICE = "__meta_kubernetes_pod_", "__meta_kubernetes_service_"


def _keep(label, regex):
    return {"action": "keep", "source_labels": [label], "regex": regex}


def _meta(prefix, kind, key):
    return f"{prefix}{kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}"


def _marks(prefix, metadata):
    """The labels of an object as Prometheus discovers them."""
    return {name: value for key, text in metadata.get("labels", {}).items() for name, value in
            ((_meta(prefix, "label", key), text), (_meta(prefix, "labelpresent", key), "true"))}


def _pod_groups(pods):
    """A target for each port of each container of each pod."""
    for pod in pods:
        meta = pod["metadata"]
        common = {"__meta_kubernetes_namespace": meta["namespace"], _POD + "name": meta["name"], _POD + "phase": pod["status"]["phase"],
                  **_marks(_POD, meta)}
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            for port in container.get("ports", []):
                yield {"targets": [f"{pod['status'].get('podIP', 'none')}:{port['containerPort']}"], "labels": {
                    **common, _POD + "container_name": container["name"], _POD + "container_port_name": port.get("name", ""),
                    _POD + "container_port_number": str(port["containerPort"])}}


def _service_groups(services, pods):
    """A target for each port of each pod behind each service."""
    for service in services:
        selector = service["spec"].get("selector", {})
        if not selector:
            continue
        meta = service["metadata"]
        behind = [pod for pod in pods if pod["metadata"]["namespace"] == meta["namespace"]
                  and selector.items() <= pod["metadata"].get("labels", {}).items()]
        ports = {str(port["targetPort"]): port["name"] for port in service["spec"]["ports"]}
        for group in _pod_groups(behind):
            labels = group["labels"]
            name = ports.get(labels[_POD + "container_port_name"]) or ports.get(labels[_POD + "container_port_number"])
            if name:
                labels.update({"__meta_kubernetes_endpointslice_port_name": name, _SERVICE + "name": meta["name"], **_marks(_SERVICE, meta)})
                yield group


def _selection(prefix, selector):
    """The relabelings that keep what a label selector means."""
    kept = [_keep(_meta(prefix, "label", key), re.escape(value)) for key, value in selector.get("matchLabels", {}).items()]
    for one in selector.get("matchExpressions", []):
        if one["operator"] != "Exists":
            raise Failed(f"the monitors have an expression that this test does not know: {one}")
        kept.append(_keep(_meta(prefix, "labelpresent", one["key"]), "true"))
    return kept


def scrape_config(monitor, proxy, folder):
    """What the operator makes of a monitor, with addresses of the API server's proxy."""
    spec, meta = monitor["spec"], monitor["metadata"]
    service = monitor["kind"] == "ServiceMonitor"
    endpoint = (spec["endpoints"] if service else spec["podMetricsEndpoints"])[0]
    own = [] if spec.get("namespaceSelector", {}).get("any") else [_keep("__meta_kubernetes_namespace", re.escape(meta["namespace"]))]
    port = "__meta_kubernetes_endpointslice_port_name" if service else _POD + "container_port_name"
    number = [_POD + "container_port_number"]
    relabelings = [
        *own,
        *_selection(_SERVICE if service else _POD, spec["selector"]),
        _keep(port, re.escape(endpoint["port"])),
        {"action": "drop", "source_labels": [_POD + "phase"], "regex": "(Failed|Succeeded)"},
        *({"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target} for source, target in
          (("namespace", "namespace"), ("pod_name", "pod"), ("pod_container_name", "container"))),
        {"source_labels": [_SERVICE + "name"] if service else [], "target_label": "job",
         "replacement": "${1}" if service else f"{meta['namespace']}/{meta['name']}"},
        {"source_labels": ["__meta_kubernetes_namespace", _POD + "name", *number], "separator": ";", "regex": "(.+);(.+);(.+)",
         "target_label": "__metrics_path__", "replacement": f"/api/v1/namespaces/$1/pods/$2:$3/proxy{endpoint['path']}"},
        {"target_label": "__address__", "replacement": proxy},
        *(endpoint.get("relabelings", []))]
    return {"job_name": f"{meta['namespace']}/{meta['name']}", "scrape_interval": "1s", "scrape_timeout": "1s", "relabel_configs": relabelings,
            "file_sd_configs": [{"files": [f"{folder}/{'services' if service else 'pods'}.json"]}]}


class Prometheus:
    def __init__(self, cluster, monitors):
        if not shutil.which("prometheus"):
            raise Skipped("prometheus is not installed on this machine")
        self._cluster, self._monitors = cluster, monitors
        self._processes = []

    def _start(self, command, environment=None):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._processes.append(process)
        return process

    def __enter__(self):
        command, environment = self._cluster.command("proxy", "--port=0")
        line = self._start(command, environment).stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", line)
        if not found:
            self.__exit__()
            raise Failed(f"kubectl proxy says: {line.strip()}")
        self._folder = tempfile.TemporaryDirectory(prefix="addend-prometheus-")
        config = f"{self._folder.name}/prometheus.yml"
        with open(config, "w", encoding="ascii") as file:
            yaml.safe_dump({"scrape_configs": [scrape_config(one, found[0], self._folder.name) for one in self._monitors]}, file)
        self._discover()
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        with open(f"{self._folder.name}/log", "wb") as log:
            self._processes.append(subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self._folder.name}/data",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log))
        eventually("Prometheus answers", lambda: self._ask("/api/v1/targets"), 30)
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.terminate()
            process.wait(30)

    def _ask(self, path):
        try:
            with urllib.request.urlopen(self._address + path, timeout=10) as answer:
                return json.loads(answer.read())["data"]
        except (urllib.error.URLError, ConnectionError):
            return None

    def _discover(self):
        """Tells Prometheus of all pods of the cluster."""
        pods, services = self._cluster.get("pods", "-A"), self._cluster.get("services", "-A")
        for name, groups in ("pods", _pod_groups(pods)), ("services", _service_groups(services, pods)):
            path = pathlib.Path(self._folder.name, f"{name}.json")
            path.with_suffix(".new").write_text(json.dumps(list(groups)))
            path.with_suffix(".new").rename(path)

    def healthy(self, namespace):
        """The pods of a namespace that are scraped with success, sorted; a pod that is scraped twice is there twice."""
        self._discover()
        targets = self._ask("/api/v1/targets?state=active")["activeTargets"]
        return sorted(one["labels"]["pod"] for one in targets if one["labels"]["namespace"] == namespace and one["health"] == "up")

    def values(self, expression):
        """The result of a query."""
        return self._ask("/api/v1/query?query=" + urllib.parse.quote(expression))["result"]
