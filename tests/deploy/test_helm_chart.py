"""The chart's rendered objects: valid for Kubernetes, and as the values promise."""
import copy
import hashlib
import json
import re

import pytest

from tests.deploy import chart
from tests.support.cluster import run_binary

OPERATOR = ("monitoring.coreos.com/v1",)
BINARIES = {"scheduler": "addend-scheduler", "summation": "addend-summation", "addend-agent": "addend-agent",
            "agent-0": "addend-agent", "agent-1": "addend-agent", "check": "addendctl", "webhook": "addendctl"}


def everything():
    """Every object of every variant."""
    return [o for variant in chart.VARIANTS for o in chart.render(variant, apis=OPERATOR)]


def ours(objects):
    """(variant's pod name, labels, pod spec, container) of the containers that run a binary of ours."""
    for name, labels, _, spec in chart.pods(objects):
        for container in chart.containers(spec):
            if container["name"] in BINARIES:
                yield name, labels, spec, container


# ---- well formed ----

@pytest.mark.parametrize("variant", chart.VARIANTS)
def test_helm_lints_the_chart_without_a_warning(variant):
    api = "--set=injection.apiVersion=admissionregistration.k8s.io/v1"  # `helm lint` asks no cluster for its APIs
    result = chart.helm("lint", "--strict", "addend", f"--values=addend/ci/{variant}-values.yaml", api)
    assert result.returncode == 0 and "WARNING" not in result.stdout, result.stdout


def test_kubernetes_accepts_every_object_of_every_variant():
    wrong = [f"{o['kind']} {o['metadata']['name']}: {problem}" for o, problem in chart.problems(everything())]
    assert not wrong, "\n".join(wrong)


PLANTED = [  # (variant, kind, the changed path, its new value)
    ("default", "Deployment", ("spec", "template", "spec", "containers", 0, "imagePullPolcy"), "Always"),
    ("default", "Deployment", ("spec", "template", "spec", "containers", 0, "livenessProbe", "grpc", "port"), "health"),
    ("default", "Deployment", ("spec", "template", "spec", "containers", 0, "resources", "limits", "memory"), "8Gx"),
    ("ha-etcd", "StatefulSet", ("spec", "podManagmentPolicy"), "Parallel"),
    ("ha-etcd", "PodDisruptionBudget", ("spec", "maxUnavailble"), 1),
    ("ha-etcd", "NetworkPolicy", ("spec", "podSelectr"), {}),
    ("default", "PersistentVolumeClaim", ("spec", "accessMode"), "ReadWriteOnce"),
    ("default", "Service", ("spec", "clusterIp"), "None"),
    ("default", "PriorityClass", ("preemptionPolicy",), 7),
    ("monitoring", "ServiceMonitor", ("spec", "endpoints", 0, "intervall"), "15s"),
    ("monitoring", "PodMonitor", ("spec", "podMetricsEndpoint"), []),
    ("keda", "ScaledObject", ("spec", "minReplicaCoun"), 1),
    ("keda", "ScaledObject", ("spec", "triggers", 0, "metadata", "threshold"), 1),
    ("tls-cert-manager", "Certificate", ("spec", "dnsName"), "a"),
    ("customized", "HTTPRoute", ("spec", "rules", 0, "backendRefs", 0, "portt"), 1),
    ("customized", "Ingress", ("spec", "ingressClass"), "a"),
    ("injection", "MutatingAdmissionPolicy", ("spec", "matchConstraints", "objectSelectr"), {}),
    ("webhook", "MutatingWebhookConfiguration", ("webhooks", 0, "clientConfig", "service", "prt"), 443),
    ("injection", "ClusterTrainingRuntime", ("spec", "mlPolicy", "numNode"), 2),
    ("injection", "ClusterTrainingRuntime", ("spec", "template", "spec", "replicatedJobs", 0, "template", "spec", "template", "spec",
                                             "initContainers", 0, "restartPolcy"), "Always"),
]


def test_a_misspelt_field_or_a_wrong_type_of_a_manifest_is_noticed():
    planted = []
    for variant, kind, path, value in PLANTED:
        o = copy.deepcopy(next(o for o in chart.render(variant, apis=OPERATOR) if o["kind"] == kind))
        target = o
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        planted.append(o)
    noticed = [id(o) for o, _ in chart.problems(planted)]
    missed = [planted_one for o, planted_one in zip(planted, PLANTED) if id(o) not in noticed]
    assert not missed


@pytest.mark.parametrize("setting", [
    "schedular.replicas=1", "scheduler.replica=1", "scheduler.persistence.sise=1Gi", "scheduler.image.digset=x", "summation.cpus=4",
    "summation.priorityClass.preemption=x", "agent.modelByte=1", "injection.on=true", "kubeflow.nodes=2", "rdma.resources=x",
    "tls.certManager.issuer=x", "autoscaling.max=3", "metrics.monitor=auto", "metrics.dashboards.label=x", "networkPolicy.on=true",
    "test.on=true",
])
def test_a_misspelt_value_is_refused_by_its_name(setting):
    path = setting.split("=")[0].split(".")
    assert re.search(rf"Additional property ({path[0]}|{path[-1]}) is not allowed", chart.refusal(setting))


@pytest.mark.parametrize("setting", [
    "scheduler.replicas=0", "scheduler.store=postgres", "scheduler.lease=5", "summation.cpu=1.5", "summation.memory=8GB",
    "summation.bandwidth=fast", "logLevel=verbose", "metrics.monitors=maybe", "scheduler.image.digest=sha256:abc", "rdma.resource=hca",
    "hostAgents=all",
])
def test_a_value_out_of_bounds_is_refused(setting):
    assert setting.split("=")[0] in chart.refusal(setting)


@pytest.mark.parametrize("settings,sentence", [
    (["scheduler.store=kubernetes", "scheduler.serviceAccount.create=false"], "set scheduler.serviceAccount.create=true"),
    (["scheduler.etcd.tlsSecretName=etcd"], "scheduler.etcd is for scheduler.store=etcd:..."),
    (["scheduler.replicas=3"], "set scheduler.store to kubernetes or etcd:HOST:PORT"),
    (["summation.drainTimeoutSeconds=60"], "summation.terminationGracePeriodSeconds must be more"),
    (["summation.memory=512Mi"], "summation.memory (512Mi) must be more than summation.memoryHeadroom"),
    (["tls.enabled=true"], "tls.enabled needs certificates"),
    (["tls.enabled=true", "tls.certManager.enabled=true"], "needs tls.certManager.issuerRef.name"),
    (["tls.enabled=true", "tls.certManager.enabled=true", "tls.secretName=x"], "choose one"),
    (["rdma.runAsRoot=true"], "rdma.runAsRoot without rdma.enabled"),
    (["injection.enabled=true"], "Kubernetes has it from 1.36 on"),
    (["injection.enabled=true", "rbac.clusterScoped=false"], "set rbac.clusterScoped=true"),
    (["summation.transport=rdma"], "set rdma.enabled"),
    (["autoscaling.enabled=true", "autoscaling.minReplicas=9"], "autoscaling.minReplicas must not be more"),
    ([f"hostAgents[{i}].{item}" for i in (0, 1) for item in (f"job=j{i}", "numNodes=2", "localSize=2", "directory=/run/a")],
     "hostAgents has /run/a twice"),
    ([f"hostAgents[{i}].{item}" for i, job in enumerate(("a.b", "a-b")) for item in (f"job={job}", "numNodes=2", "localSize=2", f"directory=/run/{i}")],
     "-host-a-b twice"),
])
def test_values_that_do_not_go_together_are_refused_in_a_sentence(settings, sentence):
    assert sentence in chart.refusal(*settings)


def test_the_chart_needs_native_sidecars():
    assert "1.28" in chart.helm("template", "x", "addend", "--kube-version=1.28.9").stderr


def test_the_charts_version_is_that_of_the_build():
    version = re.search(r"project\(addend VERSION ([\d.]+)", (chart.ROOT / "CMakeLists.txt").read_text())[1]
    definition, = chart.load((chart.CHART / "Chart.yaml").read_text())
    assert definition["appVersion"] == version
    used = re.findall(r"ghcr\.io/addend/addend-\w+:([\w.-]+)", "".join(
        path.read_text() for path in [chart.CHART / "values.yaml", *chart.EXAMPLES.glob("*.yaml")]))
    assert used and set(used) == {version}


# ---- references ----

@pytest.mark.parametrize("variant", chart.VARIANTS)
def test_selectors_select_the_pods_that_they_are_meant_for(variant):
    objects = chart.render(variant, apis=OPERATOR)
    labels = [labels for name, labels, _, _ in chart.pods(objects)]
    for o in objects:
        spec = o.get("spec", {})
        if o["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
            assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        selector = {"Service": lambda: spec["selector"], "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"],
                    "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
                    "PodMonitor": lambda: spec["selector"].get("matchLabels", {})}.get(o["kind"], dict)()
        if selector:
            assert sum(selector.items() <= pod.items() for pod in labels) == 1, (o["kind"], o["metadata"]["name"])
        if o["kind"] == "ServiceMonitor":
            services = [s for s in objects if s["kind"] == "Service" and spec["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
            assert len(services) == 1, "each scheduler must be read once"
            assert {e["port"] for e in spec["endpoints"]} <= {p["name"] for p in services[0]["spec"]["ports"]}


@pytest.mark.parametrize("variant", chart.VARIANTS)
def test_objects_that_a_pod_refers_to_are_made_by_the_chart_or_named_in_the_values(variant):
    objects = chart.render(variant, apis=OPERATOR)
    values = (chart.CHART / "ci" / f"{variant}-values.yaml").read_text() + (chart.CHART / "values.yaml").read_text()
    made = {(o["kind"], o["metadata"]["name"]) for o in objects}
    made |= {("Secret", o["spec"]["secretName"]) for o in objects if o["kind"] == "Certificate"}

    def check(kind, name):
        assert (kind, name) in made or re.search(rf"\b{re.escape(name)}\b", values), f"nobody makes {kind} {name}"

    for _, _, _, spec in chart.pods(objects):
        for volume in spec.get("volumes", []):
            if "secret" in volume:
                check("Secret", volume["secret"]["secretName"])
            if "configMap" in volume:
                check("ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                check("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        if spec.get("serviceAccountName", "default") != "default":
            check("ServiceAccount", spec["serviceAccountName"])
        if "priorityClassName" in spec:
            check("PriorityClass", spec["priorityClassName"])
        mounted = {mount["name"] for container in chart.containers(spec) for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in spec.get("volumes", [])}


def test_a_change_of_values_always_changes_the_pods_themselves():
    """A long-running pod that reads a ConfigMap of the chart's, which is the webhook's alone, is annotated with its checksum."""
    for variant in chart.VARIANTS:
        objects = chart.render(variant)
        for name, _, annotations, spec in chart.pods(objects):
            maps = [v["configMap"]["name"] for v in spec.get("volumes", []) if "configMap" in v]
            if name.split()[0] not in ("Deployment", "StatefulSet") or not maps:
                continue
            (text,), = [o["data"].values() for o in objects if o["kind"] == "ConfigMap" and [o["metadata"]["name"]] == maps]
            assert annotations["addend.io/settings"] == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("variant", chart.VARIANTS)
def test_ports_are_those_that_the_binaries_listen_on(variant):
    defaults = {binary: {int(port) for port in re.findall(r"--(?:[a-z]+-)?(?:listen|http)=:(\d+)", run_binary(binary, "--help").stdout)}
                for binary in set(BINARIES.values()) - {"addendctl"}}
    for _, _, _, container in ours(chart.render(variant)):
        if container["name"] in ("scheduler", "summation", "addend-agent"):
            assert {port["containerPort"] for port in container["ports"]} == defaults[BINARIES[container["name"]]]
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                assert container.get(probe, {"grpc": {"port": container["ports"][-1]["containerPort"]}})["grpc"]["port"] \
                    == next(p["containerPort"] for p in container["ports"] if p["name"].endswith("health"))


# ---- flags and metrics ----

def test_every_variable_and_argument_that_is_given_to_a_binary_is_a_flag_of_it():
    flags = {binary: set(re.findall(r"^  --([a-z-]+)=", run_binary(binary, "--help").stdout, re.M)) for binary in set(BINARIES.values())}
    given = {}
    for _, _, _, container in ours(everything()):
        names = {name.removeprefix("ADDEND_").lower().replace("_", "-") for name in chart.environment(container) if name.startswith("ADDEND_")}
        names |= {word.split("=")[0].removeprefix("--") for word in container.get("args", []) if container["name"] != "check"}
        given.setdefault(BINARIES[container["name"]], set()).update(names)
    given.pop("addendctl", None)
    unknown = {binary: sorted(names - flags[binary]) for binary, names in given.items() if names - flags[binary]}
    assert given and not unknown


def test_the_binaries_take_the_values_of_the_variables():
    """--print-config parses and checks everything, and starts nothing."""
    for name, _, _, container in ours(everything()):
        binary = BINARIES[container["name"]]
        if binary == "addendctl":
            continue
        env = {k: v for k, v in chart.environment(container).items() if isinstance(v, str) and k.startswith("ADDEND_") and "TLS" not in k}
        answer = run_binary(binary, *container.get("args", []), "--print-config", env=env)
        assert answer.returncode == 0, f"{name}: {answer.stderr}"


def test_keda_asks_for_a_metric_that_the_scheduler_has():
    query = chart.find(chart.render("keda"), "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    metric, = re.findall(r"addend_\w+", query)
    sources = "".join(path.read_text() for path in (chart.ROOT / "services" / "scheduler").glob("*.cc"))
    assert f'"{metric}"' in sources
    labels = dict(re.findall(r'(\w+)="([^"]*)"', query))
    monitored = chart.find(chart.render("keda"), "ServiceMonitor")
    service, = [s for s in chart.render("keda") if s["kind"] == "Service"
                and monitored["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
    assert labels == {"namespace": chart.NAMESPACE, "service": service["metadata"]["name"]}


# ---- agents of machines ----

def test_an_agent_of_a_machine_serves_the_pods_of_its_job_alone():
    objects = chart.render("host-agents")
    sets = [o for o in objects if o["kind"] == "DaemonSet"]
    assert [o["metadata"]["name"] for o in sets] == ["rel-addend-host-team.train".replace(".", "-"), "rel-addend-host-team-tune"]
    selectors = [o["spec"]["selector"]["matchLabels"] for o in sets]
    assert [sum(selector.items() <= labels.items() for _, labels, _, _ in chart.pods(objects)) for selector in selectors] == [1, 1]
    for o, job, machines, ranks in zip(sets, ("team.train", "team.tune"), ("2", "3"), ("4", "2")):
        spec = o["spec"]["template"]["spec"]
        agent, = spec["containers"]
        env = chart.environment(agent)
        assert {name: env[f"ADDEND_{name}"] for name in ("JOB", "NUM_NODES", "LOCAL_SIZE", "NODE_RANK")} == {
            "JOB": job, "NUM_NODES": machines, "LOCAL_SIZE": ranks, "NODE_RANK": "trainers"}
        assert "ADDEND_STAY_TO_REFUSE" not in env, "Kubernetes starts it again"
        assert "restartPolicy" not in agent and agent["readinessProbe"]["grpc"]["service"] == "readiness"
        assert agent["securityContext"]["runAsGroup"] == 65532, "the group of the trainers"
        directory, = (volume["hostPath"] for volume in spec["volumes"] if volume["name"] == "addend-run")
        assert directory == {"path": f"/run/addend/{job.split('.')[1]}", "type": "DirectoryOrCreate"}
    assert (sets[0]["spec"]["template"]["spec"]["nodeSelector"], sets[1]["spec"]["template"]["spec"]["hostNetwork"]) == ({"pool": "gpu"}, True)


def test_agents_of_machines_are_scraped():
    monitor = chart.find(chart.render("host-agents", apis=OPERATOR), "PodMonitor", "host-agents")
    key, = [expression["key"] for expression in monitor["spec"]["selector"]["matchExpressions"]]
    assert all(key in o["spec"]["template"]["metadata"]["labels"] for o in chart.render("host-agents") if o["kind"] == "DaemonSet")
    assert monitor["metadata"]["namespace"] == chart.NAMESPACE, "which is where they run"


def test_long_names_of_jobs_stay_apart_within_a_labels_length():
    jobs = ["team/Training-of-a-model-with-a-rather-long-name-and-a-" + end for end in ("first", "second")]
    settings = [f"hostAgents[{i}].{item}" for i, job in enumerate(jobs)
                for item in (f"job={job}", "numNodes=2", "localSize=2", f"directory=/run/{i}")]
    names = {o["metadata"]["name"] for o in chart.render(None, *settings) if o["kind"] == "DaemonSet"}
    assert len(names) == 2 and all(re.fullmatch(r"rel-addend-host-team-training-[a-z0-9-]*[a-z0-9]", name) and len(name) <= 63 for name in names), names


def test_an_agent_of_a_machine_has_memory_for_its_job():
    """(L + 3) times the bytes of all tensors, and 128 MiB."""
    first, second = (o["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
                     for o in chart.render("host-agents") if o["kind"] == "DaemonSet")
    assert (int(first), int(second)) == (7 * 500_000_000 + (128 << 20), 5 * 1_500_000_000 + (128 << 20))


# ---- security ----

@pytest.mark.parametrize("variant", chart.VARIANTS)
def test_our_containers_are_confined(variant):
    for name, _, spec, container in ours(chart.render(variant)):
        own, pod = container["securityContext"], spec["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True, name
        assert own["capabilities"]["drop"] == ["ALL"], name
        assert own.get("seccompProfile", pod.get("seccompProfile")) == {"type": "RuntimeDefault"}, name
        root = own.get("runAsUser", pod.get("runAsUser", 65532)) == 0
        of_machine = any("hostPath" in volume for volume in spec.get("volumes", []))  # only root may write to it
        assert root == (variant == "rdma" and container["name"] != "scheduler" or of_machine), name
        assert own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not root, name
        assert (container.get("imagePullPolicy"), spec.get("hostPID"), spec.get("hostIPC")) == ("IfNotPresent", None, None)


def test_only_schedulers_whose_store_is_kubernetes_api_may_use_it_and_only_for_their_records():
    objects = chart.render("ha-kubernetes")
    assert {name.split()[-1] for name, _, _, spec in chart.pods(objects) if spec["automountServiceAccountToken"]} == {"rel-addend-scheduler"}
    role, = (one for one in objects if one["kind"] == "Role")
    assert {(*rule["apiGroups"], *rule["resources"]): set(rule["verbs"]) for rule in role["rules"]} == {
        ("", "secrets"): {"get", "list", "create", "update", "delete"}, ("coordination.k8s.io", "leases"): {"get", "create", "update"}}
    binding, = (one for one in objects if one["kind"] == "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "rel-addend-scheduler", "namespace": chart.NAMESPACE}]
    scheduler, = (spec for name, _, _, spec in chart.pods(objects) if name.endswith("rel-addend-scheduler"))
    assert {"name": "ADDEND_STORE", "value": "kubernetes:rel-addend-scheduler"} in scheduler["containers"][0]["env"]
    policy, = (one for one in objects if one["kind"] == "NetworkPolicy" and one["metadata"]["name"].endswith("-scheduler"))
    assert {"ports": [{"port": 443}, {"port": 6443}]} in policy["spec"]["egress"]


@pytest.mark.parametrize("variant", [one for one in chart.VARIANTS if one != "ha-kubernetes"])
def test_no_pod_has_a_token_for_kubernetes_api(variant):
    objects = chart.render(variant)
    for name, _, _, spec in chart.pods(objects):
        if not name.startswith("ClusterTrainingRuntime"):
            assert spec["automountServiceAccountToken"] is False, name
    assert all(o["automountServiceAccountToken"] is False for o in objects if o["kind"] == "ServiceAccount")
    assert not chart.kinds(objects) & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}


def test_without_rdma_no_container_may_lock_memory_or_requests_a_nic():
    for variant in set(chart.VARIANTS) - {"rdma"}:
        text = json.dumps(chart.render(variant))
        assert "IPC_LOCK" not in text and "rdma/" not in text


def test_with_rdma_servers_and_sidecars_have_the_nic_and_the_scheduler_does_not():
    for _, _, _, container in ours(chart.render("rdma")):
        wanted = container["name"] not in ("scheduler", "check")
        assert ("IPC_LOCK" in container["securityContext"]["capabilities"].get("add", [])) == wanted
        assert ("rdma/hca_shared_devices_a" in container["resources"]["limits"]) == wanted


def test_network_policies_deny_everything_that_they_do_not_allow():
    objects = chart.render("ha-etcd")
    for component, ports in (("scheduler", {7070, 7080}), ("summation", {7170, 7171, 7180})):
        spec = chart.find(objects, "NetworkPolicy", component)["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == ports
        assert all("from" in rule and "ports" in rule for rule in spec["ingress"])
        assert all("ports" in rule for rule in spec["egress"])
    egress = chart.find(objects, "NetworkPolicy", "scheduler")["spec"]["egress"]
    assert {"ports": [{"port": 2379}]} in egress
    assert {"ports": [{"port": 2379}]} not in chart.find(chart.render("monitoring"), "NetworkPolicy", "scheduler")["spec"]["egress"]


def test_metrics_are_open_to_the_monitoring_namespace_alone():
    for component, port in (("scheduler", 7080), ("summation", 7180)):
        rule, = [r for r in chart.find(chart.render("monitoring"), "NetworkPolicy", component)["spec"]["ingress"] if {"port": port} in r["ports"]]
        assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


# ---- TLS ----

def test_with_tls_every_service_has_its_certificate_and_without_it_none():
    assert "TLS" not in json.dumps(chart.render("default"))
    for _, _, spec, container in ours(chart.render("tls-cert-manager")):
        env = chart.environment(container)
        folder, = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "addend-tls"]
        assert {env["ADDEND_TLS_CERT"], env["ADDEND_TLS_KEY"], env["ADDEND_TLS_CA"]} == {f"{folder}/{f}" for f in ("tls.crt", "tls.key", "ca.crt")}
        assert [v for v in spec["volumes"] if v["name"] == "addend-tls"]


def test_certificates_serve_both_directions_and_carry_the_name_that_is_checked():
    objects = chart.render("tls-cert-manager")
    checked = {chart.environment(c)["ADDEND_TLS_SERVER_NAME"] for _, _, _, c in ours(objects)}
    assert checked == {"addend"}
    for certificate in (o for o in objects if o["kind"] == "Certificate"):
        assert {"server auth", "client auth"} <= set(certificate["spec"]["usages"])
        assert "addend" in certificate["spec"]["dnsNames"]
    assert "rel-addend-scheduler.addend-system.svc" in chart.find(objects, "Certificate", "scheduler-tls")["spec"]["dnsNames"]


def test_sidecars_certificates_are_in_the_namespaces_of_their_pods():
    agents = [o["metadata"]["namespace"] for o in chart.render("tls-cert-manager")
              if o["kind"] == "Certificate" and o["spec"]["secretName"] == "addend-agent-tls"]
    assert agents == [chart.NAMESPACE, "team-a", "team-b"]


def test_an_existing_secret_serves_all_components_and_nothing_is_issued():
    objects = chart.render("tls-secret")
    assert "Certificate" not in chart.kinds(objects)
    secrets = {v["secret"]["secretName"] for _, _, _, spec in chart.pods(objects) for v in spec["volumes"] if "secret" in v}
    assert secrets == {"addend-certificates"}


# ---- secrets ----

def test_scheduler_and_servers_have_the_servers_secret_and_sidecars_their_jobs():
    assert "SECRET" not in json.dumps(chart.render("default"))
    objects = chart.render("secrets")
    found = {}
    for name, _, spec, container in ours(objects):
        env = chart.environment(container)
        if "ADDEND_SERVER_SECRET_FILE" not in env and "ADDEND_JOB_SECRET_FILE" not in env:
            continue
        volume, = [v for v in spec["volumes"] if v["name"] == "addend-secret"]
        mount, = [m for m in container["volumeMounts"] if m["name"] == "addend-secret"]
        found[container["name"]] = (env.get("ADDEND_SERVER_SECRET_FILE"), env.get("ADDEND_JOB_SECRET_FILE"), volume["secret"]["secretName"])
        assert mount["readOnly"] and mount["mountPath"] == "/etc/addend/secret"
    file = "/etc/addend/secret/secret"
    assert found == {"scheduler": (file, None, "addend-servers"), "summation": (file, None, "addend-servers"),
                     "addend-agent": (None, file, "addend-jobs")}


def test_the_helm_test_has_no_job_secret():
    pod = chart.find(chart.render("secrets"), "Pod", "test")
    assert "addend-secret" not in json.dumps(pod) and "SECRET" not in json.dumps(pod)


# ---- the scheduler ----

def test_one_scheduler_with_sqlite_never_overlaps_with_the_next():
    spec = chart.find(chart.render(), "Deployment", "scheduler")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert chart.find(chart.render(), "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_one_scheduler_has_no_disruption_budget_which_would_block_drains():
    assert "PodDisruptionBudget" not in chart.kinds(chart.render())
    assert chart.find(chart.render("ha-etcd"), "PodDisruptionBudget", "scheduler")["spec"]["maxUnavailable"] == 1


def test_members_get_the_address_of_every_scheduler():
    objects = chart.render("ha-etcd")
    scheduler = chart.find(objects, "StatefulSet", "scheduler")
    headless = scheduler["spec"]["serviceName"]
    wanted = ",".join(f"rel-addend-scheduler-{i}.{headless}.{chart.NAMESPACE}.svc:7070" for i in range(3))
    server = chart.find(objects, "Deployment", "summation")["spec"]["template"]["spec"]["containers"][0]
    assert chart.environment(server)["ADDEND_SCHEDULER"] == wanted
    assert chart.find(objects, "Service", "scheduler-headless")["spec"]["clusterIP"] == "None"
    assert [p["name"] for p in chart.find(objects, "Service", "scheduler")["spec"]["ports"]] == ["http"]


def test_a_standby_counts_as_ready():
    standby = chart.find(chart.render("ha-etcd"), "StatefulSet", "scheduler")["spec"]["template"]["spec"]["containers"][0]
    assert standby["readinessProbe"]["grpc"] == {"port": 7081}
    single = chart.find(chart.render(), "Deployment", "scheduler")["spec"]["template"]["spec"]["containers"][0]
    assert single["readinessProbe"]["grpc"] == {"port": 7081, "service": "readiness"}


def test_several_schedulers_are_on_different_machines():
    rule, = chart.find(chart.render("ha-etcd"), "StatefulSet")["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "scheduler"


def test_a_release_of_the_chart_alone_leaves_the_pods_as_they_are():
    """A changed label of a pod template would start every pod anew."""
    for name, labels, _, _ in chart.pods(everything()):
        if name.split()[0] in ("Deployment", "StatefulSet"):
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(labels), name


def test_the_state_outlives_the_release():
    claim = chart.find(chart.render(), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    gone = chart.find(chart.render(None, "scheduler.persistence.keep=false"), "PersistentVolumeClaim")
    assert not gone["metadata"].get("annotations")


def test_probes_wait_longer_than_kubernetes_second():
    """A machine under load answers late: a probe that gives up ends a healthy pod."""
    for name, _, _, container in ours(everything()):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container.get(probe, {"timeoutSeconds": 5})["timeoutSeconds"] >= 5, (name, probe)


def test_spread_constraints_count_the_components_own_pods():
    constraint, = chart.find(chart.render("ha-etcd"), "StatefulSet")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    selector = constraint["labelSelector"]["matchLabels"]
    assert selector["app.kubernetes.io/component"] == "scheduler" and selector["app.kubernetes.io/instance"] == chart.RELEASE
    own = chart.render_values("default", {"summation": {"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"mine": "1"}}}]}})
    constraint, = chart.find(own, "Deployment", "summation")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchLabels"]["mine"] == "1"


def test_names_that_belong_to_no_namespace_contain_the_releases():
    for o in everything():
        if o["kind"] in ("PriorityClass", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
                         "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            assert o["metadata"]["name"].startswith(f"{chart.NAMESPACE}-"), o["metadata"]["name"]


NAMESPACED = {"ConfigMap", "Deployment", "PersistentVolumeClaim", "Pod", "Service", "ServiceAccount", "StatefulSet", "TrainingRuntime"}


def test_a_namespaces_administrator_can_install_it():
    objects = chart.render(None, "rbac.clusterScoped=false", "kubeflow.enabled=true", apis=OPERATOR)
    assert chart.kinds(objects) <= NAMESPACED
    assert all(o["metadata"]["namespace"] == chart.NAMESPACE for o in objects)
    assert all("priorityClassName" not in spec for _, _, _, spec in chart.pods(objects))


def test_a_parent_charts_condition_is_no_unknown_value():
    assert chart.render(None, "enabled=true") == chart.render()


# ---- the servers ----

def server(variant=None, *settings):
    return chart.find(chart.render(variant, *settings), "Deployment", "summation")["spec"]


def test_a_servers_requests_are_its_limits_in_whole_cpus():
    resources = server()["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "4", "memory": "8Gi"}


@pytest.mark.parametrize("memory,headroom,limit", [
    ("8Gi", "768Mi", 8 * 2**30 - 768 * 2**20), ("16G", "1Gi", 16 * 10**9 - 2**30), ("4000M", "500000k", 3500000000)])
def test_the_memory_for_tensors_is_the_containers_less_the_headroom(memory, headroom, limit):
    container, = server(None, f"summation.memory={memory}", f"summation.memoryHeadroom={headroom}")["template"]["spec"]["containers"]
    assert chart.environment(container)["ADDEND_MEMORY_LIMIT"] == str(limit)


@pytest.mark.parametrize("settings,shards", [([], "4"), (["summation.cpu=2"], "2"), (["summation.cpu=16"], "4"), (["summation.shards=8", "summation.cpu=16"], "8")])
def test_a_server_has_a_thread_for_each_cpu_up_to_four(settings, shards):
    assert chart.environment(server(None, *settings)["template"]["spec"]["containers"][0])["ADDEND_SHARDS"] == shards


def test_a_servers_grace_period_exceeds_its_drain_timeout():
    pod = server()["template"]["spec"]
    drain = chart.environment(pod["containers"][0])["ADDEND_DRAIN_TIMEOUT"]
    assert pod["terminationGracePeriodSeconds"] > int(drain.removesuffix("s"))


@pytest.mark.parametrize("value", ["1", "50%"])
def test_a_disruption_budget_of_servers_is_a_number_or_a_part(value):
    settings = ("summation.podDisruptionBudget.enabled=true", f"summation.podDisruptionBudget.maxUnavailable={value}")
    budget = chart.find(chart.render(None, *settings), "PodDisruptionBudget")
    assert str(budget["spec"]["maxUnavailable"]) == value
    assert chart.problems([budget]) == []


def test_servers_can_be_preempted_and_preempt_nothing():
    priority = chart.find(chart.render(), "PriorityClass")
    assert priority["value"] < 0 and priority["preemptionPolicy"] == "Never"
    pod = server()["template"]
    assert pod["spec"]["priorityClassName"] == priority["metadata"]["name"]
    assert pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"


def test_a_machine_runs_at_most_one_server_of_all_releases():
    rule, = server()["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname" and rule["namespaceSelector"] == {}
    assert "app.kubernetes.io/instance" not in rule["labelSelector"]["matchLabels"]
    assert rule["labelSelector"]["matchLabels"].items() <= server()["template"]["metadata"]["labels"].items()
    assert server()["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_members_advertise_the_address_of_their_pod():
    for _, _, _, container in ours(everything()):
        if BINARIES[container["name"]] in ("addend-summation", "addend-agent"):
            assert chart.environment(container)["ADDEND_ADVERTISE"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_the_laptops_values_fit_on_a_machine_with_2_cpus_and_without_a_storage_class():
    objects = chart.render("laptop")
    assert "PersistentVolumeClaim" not in chart.kinds(objects)
    cpus = 0
    for _, _, _, spec in chart.pods(objects):  # the servers, the scheduler and the pod of `helm test`
        for container in chart.containers(spec):
            cpu = str(container["resources"]["requests"]["cpu"])
            cpus += int(cpu.removesuffix("m")) / (1000 if cpu.endswith("m") else 1)
    assert cpus <= 0.8, "the cluster's own pods need about one"
    assert server("laptop")["replicas"] == 1


# ---- the status page from outside ----

def test_the_status_page_is_reached_by_the_service_that_leads_to_the_leader():
    objects = chart.render("customized")
    named = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    service, ingress = named["Service", "sums-scheduler"], named["Ingress", "sums-status"]
    rule, = ingress["spec"]["rules"]
    assert rule["host"] == "addend.example.org" and ingress["spec"]["tls"] == [{"secretName": "addend-example-org", "hosts": ["addend.example.org"]}]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    assert ingress["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/auth-url": "https://login.example.org/oauth2/auth"}
    route = named["HTTPRoute", "sums-status"]["spec"]
    assert route["rules"][0]["backendRefs"] == [{"name": service["metadata"]["name"], "port": 7080}]
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]}["http"] == 7080
    allowed = named["NetworkPolicy", "sums-scheduler"]["spec"]["ingress"]
    assert {"from": [{"namespaceSelector": {}}], "ports": [{"port": 7080}]} in allowed
    assert not chart.kinds(chart.render()) & {"Ingress", "HTTPRoute"}


@pytest.mark.parametrize("settings,words", [
    (["statusPage.ingress.enabled=true"], "statusPage.ingress.authentication"),
    (["statusPage.httpRoute.enabled=true", "statusPage.httpRoute.parentRefs[0].name=a"], "statusPage.httpRoute.filters"),
    (["statusPage.open=true", "statusPage.httpRoute.enabled=true"], "statusPage.httpRoute.parentRefs"),
])
def test_nobody_shows_the_status_page_to_everybody_by_mistake(settings, words):
    assert words in chart.refusal(*settings)


# ---- scaling ----

def test_with_keda_the_deployment_leaves_the_number_to_it():
    assert "replicas" not in server("keda")
    assert server()["replicas"] == 2 and "ScaledObject" not in chart.kinds(chart.render())
    scaled = chart.find(chart.render("keda"), "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == chart.find(chart.render("keda"), "Deployment", "summation")["metadata"]["name"]


def test_scaling_down_waits_and_scaling_up_does_not():
    behavior = chart.find(chart.render("keda"), "ScaledObject")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert (behavior["scaleUp"]["stabilizationWindowSeconds"], behavior["scaleDown"]["stabilizationWindowSeconds"]) == (0, 300)


# ---- monitoring ----

MONITORING = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_monitors_come_with_prometheus_operator_or_when_they_are_demanded():
    assert not chart.kinds(chart.render()) & MONITORING
    assert chart.kinds(chart.render(None, apis=OPERATOR)) & MONITORING >= {"ServiceMonitor", "PodMonitor"}
    assert not chart.kinds(chart.render("everything-off", apis=OPERATOR)) & MONITORING
    assert {"ServiceMonitor", "PodMonitor"} <= chart.kinds(chart.render("monitoring"))


def test_prometheus_selects_monitors_and_rules_by_the_labels_of_the_values():
    selected = [o for o in chart.render("monitoring") if o["kind"] in MONITORING]
    assert all(o["metadata"]["labels"]["release"] == "kube-prometheus-stack" for o in selected)


def test_sidecars_are_found_by_their_label_and_port_in_all_namespaces():
    monitor = chart.find(chart.render("monitoring"), "PodMonitor", "agents")["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    key = monitor["selector"]["matchExpressions"][0]["key"]
    (_, labels, _, spec), = chart.pods([chart.find(chart.render("injection"), "ClusterTrainingRuntime")])
    assert key in labels
    assert monitor["podMetricsEndpoints"][0]["port"] in {p["name"] for p in spec["initContainers"][0]["ports"]}


def test_the_rule_holds_the_alerts_of_the_file_unchanged():
    alerts, = chart.load((chart.CHART / "files" / "alerts.yaml").read_text())
    assert chart.find(chart.render("monitoring"), "PrometheusRule")["spec"] == {"groups": alerts["groups"]}


def test_each_dashboard_is_a_config_map_that_grafana_finds():
    files = {path.name: path.read_text() for path in (chart.CHART / "files" / "dashboards").glob("*.json")}
    maps = [o for o in chart.render("monitoring") if o["kind"] == "ConfigMap" and "dashboard" in o["metadata"]["name"]]
    assert {name: text for o in maps for name, text in o["data"].items()} == files and files
    for o in maps:
        assert o["metadata"]["namespace"] == "monitoring" and o["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert o["metadata"]["annotations"] == {"grafana_folder": "Addend"}


# ---- the user's own ----

def test_users_additions_to_a_pod_are_rendered():
    objects = chart.render("customized")
    pod = next(o for o in objects if o["metadata"]["name"] == "sums-scheduler" and o["kind"] == "Deployment")["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert container["image"] == "registry.example.org/addend/addend-scheduler@sha256:" + "0123456789abcdef" * 4
    assert chart.environment(container)["ADDEND_LEASE"] == "8s", "extraEnv wins, and stands there once"
    assert container["args"] == ["--log-level=debug"]
    assert {"name": "scratch", "mountPath": "/scratch"} in container["volumeMounts"]
    assert pod["metadata"]["labels"]["color"] == "blue" and pod["metadata"]["labels"]["team"] == "training"
    assert pod["metadata"]["annotations"] == {"example.org/note": "scheduler"}
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/arch": "arm64"} and pod["spec"]["tolerations"]
    assert pod["spec"]["affinity"] == {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert pod["spec"]["priorityClassName"] == "system-cluster-critical" and pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert {"name": "store", "persistentVolumeClaim": {"claimName": "state"}} in pod["spec"]["volumes"]
    assert "PersistentVolumeClaim" not in chart.kinds(objects)


def test_extra_objects_are_templates():
    assert "rel-extra" in [o["metadata"]["name"] for o in chart.render("customized") if o["kind"] == "ConfigMap"]


def test_no_container_has_a_variable_twice():
    for name, _, _, spec in chart.pods(everything()):
        for container in chart.containers(spec):
            names = [variable["name"] for variable in container.get("env", [])]
            assert len(names) == len(set(names)), f"{name}: {names}"


def test_everything_off_leaves_the_scheduler_and_the_servers():
    assert chart.kinds(chart.render("everything-off", apis=OPERATOR)) == {"Deployment", "Service"}


@pytest.mark.parametrize("variant,said,unsaid", [
    ("default", ["helm test rel --namespace addend-system", "port-forward service/rel-addend-scheduler 7080", "addendctl inject -f job.yaml "
     "--scheduler=rel-addend-scheduler.addend-system.svc:7070", "summation.bandwidth is empty"], ["LimitMEMLOCK", "runtimeRef"]),
    ("injection", ['addend.io/num-nodes: "2"', "the policy addend-system-rel-addend-inject.addend.io", "runtime torch-addend"], ["addendctl inject"]),
    ("webhook", ["the webhook addend-system-rel-addend-inject.addend.io"], ["addendctl inject"]),
    ("everything-off", ["running jobs go on from what their members know"], ["helm test"]),
    ("ha-etcd", ["rel-addend-scheduler-0.rel-addend-scheduler-headless.addend-system.svc:7070,"], []),
])
def test_the_notes_say_what_to_type_next(variant, said, unsaid):
    notes = chart.notes(variant)
    assert all(text in notes for text in said) and not any(text in notes for text in unsaid), notes
