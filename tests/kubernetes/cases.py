"""The cases of tests/kubernetes/run: what Addend's user does on a cluster, step by step.

A case runs its steps in order: `with step(CLAIM) as saw: ...; saw(FIGURES)` makes a line of the table. A step that fails raises Failed
with a sentence, which ends its case; Skipped says why a case cannot run on this cluster.
"""
import collections
import contextlib
import json
import time

import yaml

from tests.kubernetes import monitoring
from tests.kubernetes.cluster import EXAMPLES, Job, Release, Skipped, eventually, final_condition, require, training

CASES = collections.OrderedDict()


def case(function):
    CASES[function.__name__] = function
    return function


@case
def first_steps(cluster, step):
    """The chart with a laptop's values: install, `helm test --logs`, the example's job, uninstall"""
    machine = {"kubernetes.io/hostname": cluster.workers()[0]}
    with Release(cluster, "first", {part: {"nodeSelector": machine} for part in ("scheduler", "summation")}) as release:
        with step("helm install, with the values of a laptop, all pods on a single machine") as saw:
            requests = [_requests(pod) for component in ("scheduler", "summation") for pod in release.pods(component)]
            cpus = sum(requests)
            require(cpus <= 1, f"the services ask for {cpus} CPUs: no room is left for a job on a machine with two")
            saw(f"{len(requests)} pods, {cpus:g} CPUs")
        with step("helm test --logs ends with 0, and shows the comparison") as saw:
            output = cluster.helm("test", release.name, f"--namespace={release.namespace}", "--logs")
            line = next((line for line in output.splitlines() if "bit for bit as NumPy sums" in line), None)
            require(line, "the output has no line of the comparison")
            saw(line.split(";")[1].strip())
        with step("deploy/examples/job.yaml trains through its sidecars, by addendctl inject") as saw:
            example = yaml.safe_load((EXAMPLES / "job.yaml").read_text())
            trainer = example["spec"]["template"]["spec"]["containers"][0]
            trainer["image"] = cluster.image("tools")
            trainer["resources"]["requests"]["cpu"] = "100m"
            example["spec"]["template"]["spec"]["nodeSelector"] = machine
            cluster.apply(release.namespace, *release.inject(example, "--model-bytes=4000000"))
            done = eventually("the example's job ends", lambda: final_condition(cluster, release.namespace, "sums"))
            require(done["type"] == "Complete", "the example's job failed")
            lines = cluster.kubectl("logs", "-n", release.namespace, "-l", "job-name=sums", "-c", "trainer")
            require(lines.count("100 rounds, all right") == 2, f"its ranks print: {lines}")
            saw("2 nodes, 100 rounds")
        with step("a job that has ended well is no error in any log") as saw:
            logs = [cluster.kubectl("logs", "-n", release.namespace, "--prefix", "--all-containers", "--tail=-1", "-l", selector)
                    for selector in ("job-name=sums", "app.kubernetes.io/component=scheduler", "app.kubernetes.io/component=summation")]
            errors = [line for text in logs for line in text.splitlines() if '"level":"error"' in line.replace(" ", "")]
            require(not errors, f"{len(errors)} lines, the first: {errors[0] if errors else ''}")
            saw("none")
    with step("helm uninstall leaves nothing behind") as saw:
        left = [one["kind"] + "/" + one["metadata"]["name"] for kind in ("deploy", "sts", "svc", "cm", "sa", "pvc", "netpol")
                for one in cluster.get(kind, "-n", release.namespace, "-l", f"app.kubernetes.io/instance={release.name}")]
        require(not left, f"left: {', '.join(left)}")
        saw("nothing")


@case
def disturbed_job(cluster, step):
    """A job of two nodes trains, while servers come and go, machines are drained, and the scheduler loses its store"""
    workers = cluster.workers()
    if len(workers) < 3:
        raise Skipped(f"needs 3 machines for pods, and there are {len(workers)}")
    values = {"summation": {"podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"}}}
    with Release(cluster, "disturbed", values) as release:
        job = Job(cluster, release.namespace, "train", release.inject_training("train", 2, machines=workers[:2]))
        with step("the job connects through its sidecars, and a server sums for it") as saw:
            job.await_rounds(20)
            saw(_servers(release, 1))
        with step("servers are scaled from 1 to 3 under it") as saw:
            saw(_scaled(release, job, 3))
        with step("one of them is killed without grace") as saw:
            victim = release.pods("summation")[0]["metadata"]["name"]
            cluster.kubectl("delete", "pod", victim, "-n", release.namespace, "--grace-period=0", "--force")
            job.await_rounds(20)
            saw(_servers(release, 3))
        with step("a machine is drained, with more servers than machines are left") as saw:
            with _drained(cluster, workers[2]) as seconds:
                job.await_rounds(20)
                left = _servers(release, 2)
            saw(f"drained in {seconds:.0f} s; {left}")
        with step("servers are scaled back to 1") as saw:
            saw(_scaled(release, job, 1))
        with step("the scheduler is killed ten times, and has no store") as saw:
            for _ in range(10):
                before = {pod["metadata"]["uid"] for pod in release.pods("scheduler")}
                cluster.kubectl("delete", "pod", "-n", release.namespace, "-l", "app.kubernetes.io/component=scheduler",
                                "--grace-period=0", "--force")
                eventually("another scheduler is ready", lambda old=before: _ready(release.pods("scheduler"), old), 120)
                job.await_rounds(10)
            saw("each time the job went on")
        with step("helm upgrade and helm rollback replace every pod of the services") as saw:
            before = _uids(release)
            release.install({"logLevel": "debug"})
            upgraded = _uids(release)
            require(not before & upgraded, "some pods are still the former ones")
            cluster.helm("rollback", release.name, f"--namespace={release.namespace}", "--wait", "--timeout=180s")
            require(not upgraded & _uids(release), "some pods are those of the upgrade")
            job.await_rounds(20)
            saw(f"{len(before)} pods each time")
        with step("all ranks end, with equal checksums") as saw:
            job.finish()
            rounds, checksum = job.await_result()
            saw(f"{rounds} rounds, {checksum[:12]}")
        with step("a job that nobody disturbs has the same checksum") as saw:
            same = Job(cluster, release.namespace, "again", release.inject_training("again", 2, f"--rounds={rounds}"))
            undisturbed = same.await_result(timeout=600)
            require(undisturbed == (rounds, checksum), f"the disturbed job: {checksum}, the other: {undisturbed}")
            saw(checksum[:12])


@case
def several_schedulers(cluster, step):
    """Three schedulers whose state is in Kubernetes' API, of which the leader is killed again and again"""
    with Release(cluster, "several", {"scheduler": {"replicas": 3, "store": "kubernetes", "affinity": {"nodeAffinity": {}}}}) as release:
        lease = f"{release.name}-scheduler"

        def leader():
            """The pod that leads now, by the Lease."""
            holder = cluster.get("lease", lease, "-n", release.namespace)["spec"].get("holderIdentity") or ""
            return holder.split(" ")[0]
        with step("one of them leads, and a job trains") as saw:
            first = eventually("a scheduler leads", leader)
            job = Job(cluster, release.namespace, "train", release.inject_training("train", 2))
            job.await_rounds(20)
            saw(first)
        with step("the leader is killed five times without grace: another goes on with its state") as saw:
            leaders = [first]
            begin = time.monotonic()
            for _ in range(5):
                former = leader()
                cluster.kubectl("delete", "pod", former, "-n", release.namespace, "--grace-period=0", "--force")
                eventually("another scheduler leads", lambda old=former: leader() not in ("", old), 60)
                leaders.append(leader())
                job.await_rounds(10)
            jobs = release.status()["jobs"]
            require([one["generation"] for one in jobs] == [1], f"the scheduler has the jobs {jobs}")
            saw(f"{len(set(leaders))} different leaders in {time.monotonic() - begin:.0f} s")
        with step("the job ends with the right bits") as saw:
            job.finish()
            saw(f"{job.await_result()[0]} rounds")
    with step("after helm uninstall a command of the guide removes the state") as saw:
        cluster.kubectl("delete", "lease,secret", "-n", release.namespace, "-l", "addend.io/store")
        left = [one["metadata"]["name"] for kind in ("secrets", "leases") for one in cluster.get(kind, "-n", release.namespace)]
        require(not left, f"left: {left}")
        saw("nothing")


@case
def metrics(cluster, step):
    """Prometheus scrapes every pod that the monitors of the chart mean"""
    values = {"metrics": {"monitors": "never"}, "summation": {"replicas": 1}}
    with Release(cluster, "metrics", values) as release:
        job = Job(cluster, release.namespace, "train", release.inject_training("train", 2))
        job.await_rounds(10)
        with step("a Prometheus with the monitors' selectors finds each pod once, and each answers") as saw:
            monitors = release.template("--set=metrics.monitors=always", "--api-versions=monitoring.coreos.com/v1",
                                        "--show-only=templates/monitors.yaml")
            pods = [*release.pods("scheduler"), *release.pods("summation"), *job.running_pods()]
            with monitoring.Prometheus(cluster, monitors) as prometheus:
                wanted = sorted(pod["metadata"]["name"] for pod in pods)
                eventually(f"the targets are {wanted}, all healthy", lambda: prometheus.healthy(release.namespace) == wanted, 60)
                jobs = prometheus.values('addend_scheduler_jobs{namespace="%s"}' % release.namespace)
            require(jobs, "the scheduler's metrics are not there")
            saw(f"{len(wanted)} of {len(wanted)}")
        job.finish()
        job.await_result()


@case
def teams(cluster, step):
    """Two teams with jobs of one name do not meet"""
    with Release(cluster, "teams") as release:
        with step("Jobs of one name in two namespaces are two jobs of Addend") as saw:
            jobs = []
            for team in ("team-a", "team-b"):
                namespace = cluster.namespace(team)
                jobs.append(Job(cluster, namespace, "train", release.inject_training("train", 2)))
            for job in jobs:
                job.await_rounds(10)
            names = sorted(one["name"] for one in release.status()["jobs"])
            require(names == sorted(f"{job.namespace}.train" for job in jobs), f"the scheduler has the jobs {names}")
            for job in jobs:
                job.finish()
                job.await_result()
            saw(", ".join(names))


@case
def failures(cluster, step):
    """What goes wrong for good fails the Job with the reason; what goes wrong once does not"""
    with Release(cluster, "failures") as release:
        with step("an agent that cannot start fails its Job, with the reason in the trainer's log") as saw:
            objects = release.inject_training("wrong", 2)
            agent = objects[-1]["spec"]["template"]["spec"]["initContainers"][0]
            for variable in agent["env"]:
                if variable["name"] == "ADDEND_NODE_RANK":
                    variable.update(value="7")
                    variable.pop("valueFrom", None)
            job = Job(cluster, release.namespace, "wrong", objects)
            begin = time.monotonic()
            eventually("the trainers say why", lambda: any("node-rank" in job.logs(pod) for pod in job.pods()), 90)
            condition = job.await_end()
            require(condition["type"] == "Failed" and condition["reason"] == "PodFailurePolicy", f"the Job ended as {condition}")
            saw(f"PodFailurePolicy after {time.monotonic() - begin:.0f} s")
        with step("a job of eight nodes survives the loss of one") as saw:
            job = Job(cluster, release.namespace, "eight", release.inject_training("eight", 8))
            eventually("eight nodes train", lambda: len(job.running_pods()) == 8 and job.round() >= 10)
            victim = job.running_pods()[3]["metadata"]["name"]
            cluster.kubectl("delete", "pod", victim, "-n", release.namespace, "--grace-period=0", "--force")
            eventually("its pods start again", lambda: any(pod["status"]["phase"] == "Failed" for pod in job.pods()))
            eventually("eight nodes train again", lambda: len(job.running_pods()) == 8 and job.round() >= 10, 300)
            job.finish()
            failed = sum(pod["status"]["phase"] == "Failed" for pod in job.pods())
            rounds, _ = job.await_result()
            saw(f"{failed} pods failed, then {rounds} rounds")


@case
def quotas(cluster, step):
    """Namespaces with a quota and a limit range"""
    with Release(cluster, "quotas") as release:
        namespace = cluster.namespace("limited")
        cluster.apply(namespace, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"},
                                  "spec": {"hard": {"limits.cpu": "2", "limits.memory": "4Gi"}}})
        with step("sidecars with limits fit a quota on limits, and leave a pod of class Guaranteed in it") as saw:
            equal = {"cpu": "100m", "memory": "256Mi"}
            objects = release.inject_training("train", 2, flags=("--agent-cpu=100m", "--agent-cpu-limit=100m"),
                                              resources={"requests": equal, "limits": equal})
            job = Job(cluster, namespace, "train", objects)
            job.await_rounds(10)
            classes = {pod["status"]["qosClass"] for pod in job.pods()}
            require(classes == {"Guaranteed"}, f"the pods are of class {classes}")
            job.finish()
            job.await_result()
            saw("Guaranteed")


@case
def injection(cluster, step):
    """The admission policies: a label is enough, and what cannot be a node is refused with a sentence"""
    if not any(cluster.has(f"admissionregistration.k8s.io/{version}", "MutatingAdmissionPolicy") for version in ("v1", "v1beta1")):
        raise Skipped(f"Kubernetes {cluster.version} has no MutatingAdmissionPolicy")
    _injection(cluster, step, "policy", {})


@case
def webhook(cluster, step):
    """The same by the webhook of the chart, as where Kubernetes has no policies"""
    _injection(cluster, step, "webhook", {"webhook": {"enabled": True, "always": True, "image": cluster.image_values()["test"]["image"]}})


def _injection(cluster, step, way, values):
    selector = {"matchLabels": {"addend.io/test": "true"}}
    with Release(cluster, way, {"injection": {"enabled": True, "namespaceSelector": selector, **values}}) as release:
        namespace = cluster.namespace(f"{way}-jobs")
        # The API server notices new policies by a watch of its own, and says nowhere when.
        eventually(f"the {way} is in force", lambda: _would_be_injected(cluster, namespace))
        with step(f"pods with the label get a sidecar by the {way}, and train") as saw:
            job = Job(cluster, namespace, "train", training(cluster, "train", 2))
            job.await_rounds(10)
            job.finish()
            saw(f"{job.await_result()[0]} rounds")
        with step(f"an annotation that is no number is refused by the {way}, with a short sentence") as saw:
            error = cluster.refused("create", "-n", namespace, "-f", "-", text=_labelled_pod(cluster, num_nodes="two"))
            require("addend.io/num-nodes" in error and len(error) < 500, f"the refusal has {len(error)} characters: {error[:300]}")
            saw(f"{len(error)} characters")
        if way == "webhook":
            with step("helm upgrade keeps the webhook's certificate") as saw:
                def certificate():
                    configuration, = (one for one in cluster.get("mutatingwebhookconfigurations")
                                      if one["webhooks"][0]["clientConfig"].get("service", {}).get("namespace") == release.namespace)
                    return configuration["webhooks"][0]["clientConfig"]["caBundle"]
                before = certificate()
                release.install({"logLevel": "debug"})
                require(certificate() == before, "it is another one")
                again = Job(cluster, namespace, "again", training(cluster, "again", 2, "--rounds=10"))
                saw(f"then {again.await_result()[0]} rounds")


def _labelled_pod(cluster, num_nodes):
    """A pod by itself that asks for a sidecar, as JSON."""
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "labelled", "labels": {"addend.io/inject": "true"},
        "annotations": {"addend.io/num-nodes": num_nodes, "addend.io/job": "labelled", "addend.io/node-rank": "0"}},
        "spec": training(cluster, "labelled", 2)[1]["spec"]["template"]["spec"]})


def _would_be_injected(cluster, namespace):
    pod = json.loads(cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", "-o", "json", text=_labelled_pod(cluster, "2")))
    return any(one["name"] == "addend-agent" for one in pod["spec"].get("initContainers", []))


_SCALED_OBJECT = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {"group": "keda.sh", "scope": "Namespaced", "names": {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"},
             "versions": [{"name": "v1alpha1", "served": True, "storage": True,
                           "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}


@case
def autoscaling(cluster, step):
    """Autoscaling, turned on in a running release"""
    with contextlib.ExitStack() as stack:
        if not cluster.has("keda.sh/v1alpha1", "ScaledObject"):
            # KEDA itself is not needed: the case is about what Helm does to the Deployment.
            cluster.apply("default", _SCALED_OBJECT)
            stack.callback(cluster.kubectl, "delete", "crd", "scaledobjects.keda.sh", "--wait=false", check=False)
            eventually("the API server knows ScaledObjects", lambda: cluster.has("keda.sh/v1alpha1", "ScaledObject"), 30)
        release = stack.enter_context(Release(cluster, "autoscaling", {"summation": {"replicas": 2, "onePerMachine": False}}))
        with step("autoscaling leaves the servers that are there") as saw:
            release.install({"autoscaling": {"enabled": True}})
            replicas = cluster.get("deploy", f"{release.name}-summation", "-n", release.namespace)["spec"]["replicas"]
            require(replicas == 2, f"the Deployment has {replicas} replicas, and had 2")
            saw(f"{replicas} replicas")


@case
def namespace_admin(cluster, step):
    """The administrator of a namespace installs without rights in the cluster; two releases of one name live side by side"""
    with step("helm install as a user who may do everything in a namespace, and nothing outside of it") as saw:
        first = Release(cluster, "admin", {"rbac": {"clusterScoped": False}})
        cluster.apply(first.namespace, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "admin"}}, {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "admin"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "admin", "namespace": first.namespace}]})
        first.install({}, f"--kube-as-user=system:serviceaccount:{first.namespace}:admin", "--kube-as-group=system:authenticated")
        saw("installed")
    with step("two releases of one name, in two namespaces") as saw:
        with Release(cluster, "one"), Release(cluster, "two"):
            saw("both are there")
    first.uninstall()


def _requests(pod):
    """The CPUs that the containers of a pod ask for."""
    def cpus(text):
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    return sum(cpus(one["resources"]["requests"]["cpu"]) for one in pod["spec"]["containers"])


def _servers(release, count):
    """Waits until the plan counts on so many CPU servers, and says so."""
    def planned():
        sharing = [one for one in release.cpu_servers() if one["shares"]]
        require(len(sharing) == count, f"{len(sharing)} CPU servers have a share")
        return True
    eventually(f"{count} CPU servers have a share of the job", planned)
    return f"{count} CPU servers sum"


def _scaled(release, job, count):
    """Changes the number of servers, and waits until the job has trained with them."""
    release.install({"summation": {"replicas": count}})
    seen = _servers(release, count)
    job.await_rounds(20)
    return seen


def _ready(pods, former):
    """Whether there are pods, none of them a former one, all ready."""
    return pods and all(pod["metadata"]["uid"] not in former and any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", [])) for pod in pods)


def _uids(release):
    return {pod["metadata"]["uid"] for component in ("scheduler", "summation") for pod in release.pods(component)}


@contextlib.contextmanager
def _drained(cluster, machine):
    begin = time.monotonic()
    try:
        cluster.kubectl("drain", machine, "--pod-selector=app.kubernetes.io/name=addend", "--delete-emptydir-data", "--timeout=120s", timeout=130)
        yield time.monotonic() - begin
    finally:
        cluster.kubectl("uncordon", machine)
