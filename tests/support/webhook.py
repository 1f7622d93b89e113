"""`addendctl webhook` over HTTPS: its process, the API server's questions, and pods as its answers change them."""
import base64
import contextlib
import copy
import gzip
import http.client
import json
import os
import pathlib
import socket
import ssl
import time

from tests.support.certificates import flags
from tests.support.cluster import BIN_DIR, PATIENCE, sanitizer_environment
from tests.support.processes import Process

# As the chart makes them (addend.webhookSettings), for tests that render no chart.
SETTINGS = {
    "failurePolicy": "Fail",
    "rules": [{"message": "the annotation addend.io/num-nodes must be a number",
               "value": {"annotation": "addend.io/num-nodes", "pattern": "^[1-9][0-9]{0,5}$"}}],
    "jobLabels": ["batch.kubernetes.io/job-name"], "modelBytes": "1000", "memory": "", "cpu": "2",
    "sidecar": {"name": "addend-agent", "image": "agent", "env": [{"name": "ADDEND_JOB", "value": "pod:job"}],
                "resources": {"requests": {"cpu": "pod:cpu"}, "limits": {"memory": "pod:memory"}}},
    "volumes": [{"name": "addend-run", "emptyDir": {}}], "resourceClaims": [], "imagePullSecrets": [],
}
POD = {"metadata": {"name": "p", "labels": {"addend.io/inject": "true", "batch.kubernetes.io/job-name": "j"},
                    "annotations": {"addend.io/num-nodes": "2", "batch.kubernetes.io/job-completion-index": "1"}},
       "spec": {"containers": [{"name": "trainer", "image": "python:3"}]}}


def review(pod, **request):
    """The API server's question about a new pod."""
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "7", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "namespace": "team-a",
                        "object": pod, **request}}


def patched(pod, response):
    """The pod as the API server makes it of an answer."""
    pod = copy.deepcopy(pod)
    if "patch" not in response:
        return pod
    assert response["patchType"] == "JSONPatch"
    for change in json.loads(base64.b64decode(response["patch"])):
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")[1:]]
        target = pod
        for parent in parents:
            target = target[int(parent) if isinstance(target, list) else parent]
        if isinstance(target, list) and change["op"] == "add":
            target.insert(len(target) if last == "-" else int(last), change["value"])
        else:
            assert change["op"] in ("add", "replace"), change
            target[int(last) if isinstance(target, list) else last] = change["value"]
    return pod


class Webhook:
    """The process; `folder` for its files, `certificate` a folder with tls.crt, tls.key and ca.crt."""

    def __init__(self, folder, certificate, settings=None, **options):
        self.folder, self.certificate = pathlib.Path(folder), pathlib.Path(certificate)
        self.folder.mkdir(parents=True, exist_ok=True)
        file, out = self.folder / "settings.json", self.folder / "out"
        file.write_text(json.dumps(settings or SETTINGS))
        command = [BIN_DIR / "addendctl", "webhook", "--listen=127.0.0.1:0", f"--settings={file}", *flags(certificate)[:2],
                   *(f"--{name}={value}" for name, value in {"linger": "0s", **options}.items())]
        env = {**{key: value for key, value in os.environ.items() if not key.startswith("ADDEND_")}, **sanitizer_environment()}
        self.process = Process("webhook", command, self.folder / "log", env=env, stdout=out)
        self.port = self._port(out)

    def _port(self, out):
        end = time.monotonic() + 10 * PATIENCE
        while time.monotonic() < end:
            text = out.read_text()
            if text.endswith("\n"):
                return int(text.rsplit(" ", 1)[1])
            assert self.process.returncode is None, self.process.log.read_text()
            time.sleep(0.01)
        raise AssertionError(f"no port: {self.process.log.read_text()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()

    def tls(self):
        return ssl.create_default_context(cafile=self.certificate / "ca.crt")

    def connect(self, name="localhost"):
        """A connection over TLS to a server that must be called so."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=20 * PATIENCE)
        return self.tls().wrap_socket(plain, server_hostname=name)

    def request(self, method, path, body=None):
        """(status, body), as Kubernetes' API server asks: it takes a compressed answer."""
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=20 * PATIENCE, context=self.tls())
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json", "Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, (gzip.decompress(text) if answer.headers["Content-Encoding"] == "gzip" else text).decode()

    def ask(self, question):
        """The response to an AdmissionReview."""
        status, body = self.request("POST", "/mutate?timeout=5s", json.dumps(question))
        assert status == 200, body
        answer = json.loads(body)
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert answer["response"]["uid"] == question["request"]["uid"]
        return answer["response"]
