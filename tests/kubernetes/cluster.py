"""A Kubernetes cluster as the cases see it: kubectl, Helm, releases of the chart, and training jobs."""
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import yaml

from tests.deploy.chart import CHART, EXAMPLES, HELM, ROOT

LAPTOP = CHART / "ci" / "laptop-values.yaml"
TRAINER = pathlib.Path(__file__).with_name("trainer.py")
OLDEST_KUBECTL = 22  # kubectl 1.21 evicts pods by an API that Kubernetes 1.25 has no more
PATIENCE_S = 180


class Failed(Exception):
    """What a case expected and did not see, in a sentence."""


class Skipped(Exception):
    """Why the case cannot run on this cluster, in a sentence."""


class NoCluster(Exception):
    """Why nothing can run, in a sentence."""


def eventually(what, condition, timeout=PATIENCE_S, every=0.5):
    """Returns the first true value of condition(); fails with `what`, and the last exception, after the timeout."""
    deadline = time.monotonic() + timeout
    last = ""
    while time.monotonic() < deadline:
        try:
            value = condition()
            if value:
                return value
            last = ""
        except Failed as failure:
            last = f": {failure}"
        time.sleep(every)
    raise Failed(f"not within {timeout} s: {what}{last}")


def require(condition, sentence):
    if not condition:
        raise Failed(sentence)


class Cluster:
    """`kubectl` and `helm` for a kubeconfig; `repository` and `tag` say which images the pods get."""

    def __init__(self, kubeconfig, context, repository, tag):
        self._access = {"KUBECONFIG": kubeconfig} if kubeconfig else {}
        self._context = [f"--context={context}"] if context else []
        self._helm_context = [f"--kube-context={context}"] if context else []
        self._helm = shutil.which("helm") or str(HELM)
        self.repository, self.tag = repository, tag
        self.namespaces = []
        self._check_tools()

    def _check_tools(self):
        if not shutil.which("kubectl"):
            raise NoCluster("kubectl is not installed")
        done = self._run(["kubectl", *self._context, "version", "-o", "json"], 30)
        try:
            version = json.loads(done.stdout)
        except json.JSONDecodeError:
            version = {}
        if "serverVersion" not in version:
            raise NoCluster((done.stderr.strip().splitlines() or ["kubectl prints no version"])[-1])
        if int(re.sub(r"\D", "", version["clientVersion"]["minor"])) < OLDEST_KUBECTL:
            raise NoCluster(f"kubectl is {version['clientVersion']['gitVersion']}: it must be 1.{OLDEST_KUBECTL} or newer")
        if not os.access(self._helm, os.X_OK):
            raise NoCluster("helm is not installed")
        self.version = version["serverVersion"]["gitVersion"]
        self.minor = int(re.sub(r"\D", "", version["serverVersion"]["minor"]))

    def _run(self, command, timeout, text=None):
        try:
            return subprocess.run(command, env={**os.environ, **self._access}, input=text, capture_output=True, text=True,
                                  errors="replace", timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"not within {timeout} s: {' '.join(command[:6])} ...") from None

    def command(self, *arguments):
        """The command line and the environment of a kubectl that goes on running."""
        return ["kubectl", *self._context, *arguments], {**os.environ, **self._access}

    def kubectl(self, *arguments, text=None, timeout=60, check=True):
        done = self._run(["kubectl", *self._context, *arguments], timeout, text)
        if check and done.returncode:
            raise Failed(f"kubectl {' '.join(arguments[:5])}: {_last_line(done)}")
        return done.stdout

    def refused(self, *arguments, text):
        """The error of a kubectl command that has to fail."""
        done = self._run(["kubectl", *self._context, *arguments], 60, text)
        require(done.returncode, f"kubectl {' '.join(arguments)} succeeded, and should have been refused")
        return done.stderr.strip()

    def get(self, kind, *arguments):
        """An object, or the items of a list."""
        answer = json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))
        return answer["items"] if answer["kind"].endswith("List") else answer

    def apply(self, namespace, *objects):
        self.kubectl("apply", "-n", namespace, "-f", "-", text="---\n".join(yaml.safe_dump(one) for one in objects))

    def helm(self, *arguments, timeout=300, check=True):
        done = self._run([self._helm, *self._helm_context, *arguments], timeout)
        if check and done.returncode:
            raise Failed(f"helm {' '.join(arguments[:3])}: {_last_line(done)}")
        return done.stdout if check else done

    def workers(self):
        """The names of the machines that take ordinary pods."""
        return [node["metadata"]["name"] for node in self.get("nodes")
                if not node["spec"].get("unschedulable") and not any(
                    taint["effect"] in ("NoSchedule", "NoExecute") for taint in node["spec"].get("taints", []))]

    def namespace(self, purpose, **labels):
        """Makes a namespace in which only restricted pods may run; it is deleted at the end."""
        name = f"addend-test-{purpose}"
        self.apply("default", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {
            "addend.io/test": "true", "pod-security.kubernetes.io/enforce": "restricted", **labels}}})
        self.namespaces.append(name)
        return name

    def delete_namespaces(self):
        for name in self.namespaces:
            # First the Jobs: while they are there, their controller frees their pods.
            self.kubectl("delete", "jobs", "--all", "-n", name, "--cascade=foreground", "--timeout=60s", timeout=70, check=False)
            self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found", check=False)
        self.namespaces.clear()

    def has(self, api, kind):
        """Whether the cluster has a kind of an API, such as admissionregistration.k8s.io/v1."""
        answer = self._run(["kubectl", *self._context, "get", "--raw", f"/apis/{api}"], 30)
        return answer.returncode == 0 and any(one["kind"] == kind for one in json.loads(answer.stdout)["resources"])

    def image(self, name):
        return f"{self.repository}/addend-{name}:{self.tag}"

    def image_values(self):
        registry, _, repository = self.repository.partition("/")
        names = {"scheduler": "scheduler", "summation": "summation", "agent": "agent", "test": "tools"}
        return {part: {"image": {"registry": registry, "repository": f"{repository}/addend-{name}", "tag": self.tag}}
                for part, name in names.items()}


def _last_line(done):
    return (done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or [f"status {done.returncode}"])[-1]


def merged(base, over):
    """`over` laid over `base`, as Helm does with values."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}
    return over


class Release:
    """The chart, installed in a namespace of its own with the values of a laptop and those given."""

    def __init__(self, cluster, purpose, values=None, name="addend"):
        self.cluster, self.name = cluster, name
        self.namespace = cluster.namespace(purpose)
        self.values = merged(merged(yaml.safe_load(LAPTOP.read_text()), cluster.image_values()), values or {})
        self._file = ROOT / "build" / "kubernetes" / f"{self.namespace}.yaml"

    def __enter__(self):
        self.install()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.uninstall()

    @property
    def scheduler(self):
        """--scheduler for members and addendctl, as NOTES.txt says it."""
        name, replicas = f"{self.name}-scheduler", self.values["scheduler"].get("replicas", 1)
        if replicas == 1:
            return f"{name}.{self.namespace}.svc:7070"
        return ",".join(f"{name}-{number}.{name}-headless.{self.namespace}.svc:7070" for number in range(replicas))

    def install(self, values=None, *flags):
        """Installs the release, or changes it to further values, and waits until its pods are ready."""
        self.values = merged(self.values, values or {})
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(self.values))
        self.cluster.helm("upgrade", "--install", self.name, str(CHART), f"--namespace={self.namespace}", f"--values={self._file}",
                          "--wait", "--timeout=180s", *flags)

    def template(self, *flags):
        """The objects of the release, by `helm template`."""
        text = self.cluster.helm("template", self.name, str(CHART), f"--namespace={self.namespace}", f"--values={self._file}",
                                 f"--kube-version={self.cluster.version}", *flags)
        return [one for one in yaml.safe_load_all(text) if one]

    def uninstall(self):
        self.cluster.helm("uninstall", self.name, f"--namespace={self.namespace}")

    def pods(self, component):
        return [pod for pod in self.cluster.get("pods", "-n", self.namespace, "-l", f"app.kubernetes.io/component={component}")
                if "deletionTimestamp" not in pod["metadata"]]

    @functools.cached_property
    def _tools(self):
        """A pod in which addendctl runs."""
        self.cluster.apply(self.namespace, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tools"}, "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "securityContext": RESTRICTED_POD,
            "containers": [{"name": "tools", "image": self.cluster.image("tools"), "command": ["sleep", "infinity"],
                            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}, "securityContext": RESTRICTED}]}})
        self.cluster.kubectl("wait", "-n", self.namespace, "--for=condition=Ready", "pod/tools", "--timeout=120s", timeout=130)
        return "tools"

    def addendctl(self, *arguments, text=None):
        stdin = ["-i"] if text is not None else []
        return self.cluster.kubectl("exec", "-n", self.namespace, *stdin, self._tools, "--", "addendctl", *arguments,
                                    f"--scheduler={self.scheduler}", text=text)

    def status(self):
        return json.loads(self.addendctl("status", "--json"))

    def cpu_servers(self):
        return [server for server in self.status()["servers"] if not server["colocated"]]

    def inject(self, job, *flags):
        """The job with its sidecars, as addendctl makes it."""
        flags = ["--agent-cpu=50m", "--agent-memory=256Mi", f"--image={self.cluster.image('agent')}", *flags]
        return [one for one in yaml.safe_load_all(self.addendctl("inject", "-f", "-", *flags, text=yaml.safe_dump(job))) if one]

    def inject_training(self, name, nodes, *arguments, flags=(), **options):
        """The objects of a Job that runs trainer.py, with its sidecars."""
        program, job = training(self.cluster, name, nodes, *arguments, **options)
        return [program, *self.inject(job, *flags)]


RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
              "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def training(cluster, name, nodes, *arguments, annotations=None, labels=None, machines=(), resources=None):
    """A Job that runs trainer.py on every node, without sidecars: its ConfigMap, and the Job."""
    example = yaml.safe_load((EXAMPLES / "job.yaml").read_text())
    spec = example["spec"]
    spec.update(completions=nodes, parallelism=nodes)
    example["metadata"]["name"] = name
    template = spec["template"]
    template["metadata"] = {"labels": {"addend.io/inject": "true", "addend.io/test-job": name, **(labels or {})},
                            "annotations": {**template["metadata"]["annotations"], "addend.io/num-nodes": str(nodes),
                                            "addend.io/cpu": "50m", "addend.io/memory": "256Mi", **(annotations or {})}}
    pod = template["spec"]
    pod["terminationGracePeriodSeconds"] = 5
    pod["volumes"] = [{"name": "program", "configMap": {"name": f"{name}-program"}}]
    if machines:
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(machines)}]}]}}}
    container = pod["containers"][0]
    for variable in container["env"]:
        if variable["name"] == "WORLD_SIZE":
            variable["value"] = str(nodes)
    container.update(image=cluster.image("tools"), command=["python3", "/program/trainer.py", *arguments],
                     resources=resources or {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                     volumeMounts=[{"name": "program", "mountPath": "/program", "readOnly": True}])
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-program"},
            "data": {"trainer.py": TRAINER.read_text()}}, example


def final_condition(cluster, namespace, name):
    """The condition with which a Job has ended; None while it runs."""
    conditions = cluster.get("job", name, "-n", namespace)["status"].get("conditions", [])
    return next((one for one in conditions if one["type"] in ("Complete", "Failed") and one["status"] == "True"), None)


class Job:
    """A training job that runs."""

    def __init__(self, cluster, namespace, name, objects):
        self.cluster, self.namespace, self.name = cluster, namespace, name
        cluster.apply(namespace, *objects)

    def pods(self):
        return self.cluster.get("pods", "-n", self.namespace, "-l", f"addend.io/test-job={self.name}")

    def running_pods(self):
        return [pod for pod in self.pods() if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]

    def logs(self, pod, container="trainer"):
        return self.cluster.kubectl("logs", "-n", self.namespace, pod["metadata"]["name"], "-c", container, check=False)

    def round(self):
        """The rounds that every rank has at least behind it, to the last ten."""
        def of(pod):
            found = re.findall(r"^round (\d+)$", self.logs(pod), re.M)
            return int(found[-1]) if found else 0
        return min((of(pod) for pod in self.running_pods()), default=0)

    def await_rounds(self, further):
        """Waits until all ranks are so many rounds further."""
        goal = self.round() + further
        eventually(f"job {self.name} makes {further} further rounds", lambda: self._still_right() and self.round() >= goal)

    def _still_right(self):
        failed = [pod for pod in self.pods() if pod["status"]["phase"] == "Failed"]
        require(not failed, f"a pod of job {self.name} has failed: {_last_of(self.logs(failed[0])) if failed else ''}")
        return True

    def finish(self):
        """Tells the ranks to end after the round that they are in."""
        pod = eventually(f"a pod of job {self.name} runs", self.running_pods)[0]
        self.cluster.kubectl("exec", "-n", self.namespace, pod["metadata"]["name"], "-c", "trainer", "--", "touch", "/tmp/finish")

    def await_end(self, timeout=PATIENCE_S):
        """Waits for the Job's end; returns its final condition."""
        return eventually(f"job {self.name} ends", lambda: final_condition(self.cluster, self.namespace, self.name), timeout)

    def await_result(self, timeout=PATIENCE_S):
        """Waits until the Job is complete; returns (rounds, checksum), which all ranks have printed."""
        condition = self.await_end(timeout)
        last = [_last_of(self.logs(pod)) for pod in self.pods() if pod["status"]["phase"] == "Succeeded"]
        require(condition["type"] == "Complete", f"job {self.name} has failed: {condition.get('message')}")
        require(len(set(last)) == 1, f"the ranks of job {self.name} print different results: {last}")
        found = re.fullmatch(r"rounds (\d+) sha256 (\w+)", last[0])
        require(found, f"a rank of job {self.name} printed: {last[0]}")
        return int(found[1]), found[2]


def _last_of(text):
    return (text.strip().splitlines() or [""])[-1]
