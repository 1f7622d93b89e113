"""The webhook of the chart: it changes and refuses pods as the admission policies do, and Kubernetes asks it about no other pods.

The policies are evaluated by tests/deploy/cel.py; the webhook is the binary, with the settings and the certificate that the chart renders.
"""
import base64
import contextlib
import json

import pytest

from tests.deploy import cel, chart
from tests.deploy.test_helm_injection import JOB, REFUSED, TRAINER, example, indexed, pod, sidecar_of
from tests.deploy.test_helm_policies import PODS, POLICIES
from tests.support.certificates import Authority
from tests.support.cluster import run_binary
from tests.support.webhook import Webhook, patched, review

ALWAYS = {"injection": {"enabled": True, "webhook": {"enabled": True, "always": True}}}
# Values that change the sidecar, by a name: (variant, values).
VALUES = {
    **{variant: (variant, {}) for variant in ("injection", "tls-cert-manager", "secrets", "rdma")},
    "memory": ("injection", {"agent": {"memory": "5Gi", "cpu": "3"}}),
    "limits": ("injection", {"agent": {"resources": {"limits": {"cpu": 2}}}}),
    "requests": ("injection", {"agent": {"resources": {"requests": {"cpu": "500m", "example.org/tokens": 2}}}}),
    "a claim of a NIC": ("rdma", {"rdma": {"claimTemplate": "nic"}, "agent": {"dataInterface": "net1"}}),
    "pull secrets": ("injection", {"global": {"imagePullSecrets": [{"name": "own"}, {"name": "second"}]}}),
    "two schedulers": ("ha-etcd", {"injection": {"enabled": True}}),
    "variables": ("injection", {"agent": {"extraEnv": [{"name": "ADDEND_LOG_LEVEL", "value": "debug"}, {"name": "A", "value": "pod:other"}]}}),
}
SOCKET = {"name": "ADDEND_SOCKET", "value": "/elsewhere"}
MOUNT = {"name": "mine", "mountPath": "/run/addend"}
MASTER = {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/replica-type": "master", "training.kubeflow.org/replica-index": "0"}
JOBSET = {"jobset.sigs.k8s.io/jobset-name": "j", "jobset.sigs.k8s.io/job-index": "1"}
MORE_PODS = {
    "eight ranks": pod(indexed(**{"addend.io/local-size": "8"})),
    "one rank": pod(indexed(**{"addend.io/local-size": "1", "addend.io/model-bytes": "999999999999999"})),
    "a rank in words": pod(indexed(**{"addend.io/node-rank": "1", "batch.kubernetes.io/job-completion-index": "x"})),
    "an index in words": pod({"addend.io/num-nodes": "2", "batch.kubernetes.io/job-completion-index": "x"}),
    "master": pod({"addend.io/num-nodes": "5"}, MASTER),
    "all owners": pod(indexed(), {**MASTER, **JOB, "jobset.sigs.k8s.io/jobset-name": "set"}),
    "two lines": pod(indexed(**{"addend.io/num-nodes": "2\n"})),
    "other digits": pod(indexed(**{"addend.io/num-nodes": "٢"})),
    "two trainers": pod(indexed(), containers=[{**TRAINER, "env": [{"name": "A", "value": "1"}]}, {"name": "logger", "image": "busybox", "env": []}]),
    "a socket of its own": pod(indexed(), containers=[{**TRAINER, "env": [SOCKET], "volumeMounts": [MOUNT]}]),
    "a volume of its own": pod(indexed(), volumes=[{"name": "data", "emptyDir": {}}, {"name": "addend-run", "emptyDir": {"medium": "Memory"}}]),
    "a context without a group": pod(indexed(), securityContext={"runAsUser": 7}),
    "characters of a path": pod(indexed(), nodeSelector={"a/b~c": "d"}, initContainers=[{"name": "fetch", "image": "a", "env": [SOCKET]}]),
    "no init containers": pod(indexed(), initContainers=[]),
    **{f"{name} {index}": {"metadata": {"generateName": "j-", "labels": {**labels, **JOB},
                                        "annotations": {"batch.kubernetes.io/job-completion-index": "0", **annotations}}, "spec": spec}
       for name in ("job", "jobset", "pytorchjob") for index, (_, labels, annotations, spec) in enumerate(example(name))},
}
# Their rank cannot be computed: the policy's expressions fail, and so the API server refuses them.
FAILING = {
    "no type": pod({"addend.io/num-nodes": "5"}, {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/replica-index": "0"}),
    "an index in words": pod({"addend.io/num-nodes": "5"}, {**MASTER, "training.kubeflow.org/replica-index": "first"}),
    "no replicas": pod(indexed(), JOBSET),
    "a jobset of words": pod(indexed(), {**JOBSET, "jobset.sigs.k8s.io/replicatedjob-replicas": "x"}),
    "no job in a jobset": pod(indexed(), {**JOBSET, "jobset.sigs.k8s.io/replicatedjob-replicas": "0"}),
}


def merged(a, b):
    both = isinstance(a, dict) and isinstance(b, dict)
    return {**a, **{key: merged(a[key], value) if key in a else value for key, value in b.items()}} if both else b


def settings_of(objects):
    name = next(o for o in objects if o["kind"] == "MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"]["name"]
    return json.loads(next(o for o in objects if (o["kind"], o["metadata"]["name"]) == ("ConfigMap", name))["data"]["settings.json"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "authority").sign("webhook")


@pytest.fixture(scope="module")
def running(tmp_path_factory, certificate):
    """Starts a webhook with the settings that the chart renders, once for each of them."""
    with contextlib.ExitStack() as stack:
        known = {}

        def start(variant, values):
            key = json.dumps([variant, values], sort_keys=True)
            if key not in known:
                settings = settings_of(chart.render_values(variant, merged(values, ALWAYS)))
                known[key] = stack.enter_context(Webhook(tmp_path_factory.mktemp("webhook"), certificate, settings))
            return known[key]
        yield start


# ---- the same pods as by the policies ----

@pytest.mark.parametrize("name", VALUES)
def test_a_pod_is_changed_or_refused_as_by_the_policies(name, running):
    variant, values = VALUES[name]
    webhook, objects = running(variant, values), chart.render_values(variant, values)
    mutating, validating = (chart.find(objects, kind) for kind in POLICIES)
    for title, given in {**PODS, **MORE_PODS}.items():
        response = webhook.ask(review(given))
        refusals = cel.refusals(validating, given, "team-a")
        assert response["allowed"] == (not refusals), (title, response)
        assert response.get("status", {}).get("message", "") == "; ".join(refusals), title
        assert patched(given, response) == cel.admit(mutating, given, "team-a"), title


def test_pods_of_every_kind_are_compared(running):
    """Else the comparison could be one of pods that both leave alone."""
    answers = [running("injection", {}).ask(review(given)) for given in {**PODS, **MORE_PODS}.values()]
    assert sum("patch" in answer for answer in answers) >= 18
    assert sum(not answer["allowed"] for answer in answers) >= len(REFUSED)
    assert sum(answer["allowed"] and "patch" not in answer for answer in answers) == 1


@pytest.mark.parametrize("title", FAILING)
def test_a_pod_for_which_the_policys_expressions_fail_is_refused_with_a_sentence(title, running):
    with pytest.raises((cel.CelError, ValueError, ZeroDivisionError)):
        cel.admit(chart.find(chart.render("injection"), "MutatingAdmissionPolicy"), FAILING[title], "team-a")
    response = running("injection", {}).ask(review(FAILING[title]))
    assert not response["allowed"] and response["status"]["message"].startswith("the pod"), response


def test_with_failure_policy_ignore_a_pod_that_cannot_be_a_node_is_allowed_with_warnings(running):
    webhook = running("injection", {"injection": {"failurePolicy": "Ignore"}})
    for annotations, labels, sentence in REFUSED:
        response = webhook.ask(review(pod(annotations, labels)))
        assert response["allowed"] and "patch" not in response
        assert [warning for warning in response["warnings"] if sentence in warning]
    assert "warnings" not in webhook.ask(review(pod(indexed())))


def test_a_refusal_names_everything_that_is_wrong(running):
    response = running("injection", {}).ask(review(pod(None, {})))
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    for part in ("addend.io/num-nodes", "addend.io/job", "completionMode: Indexed"):
        assert part in response["status"]["message"]


def test_kubernetes_accepts_pods_that_the_webhook_has_changed(running):
    changed = []
    for variant, values in VALUES.values():
        changed += [patched(given, running(variant, values).ask(review(given))) for given in (PODS["plain"], PODS["own"], MORE_PODS["job 0"])]
    assert all(sidecar_of(one) for one in changed)
    assert chart.problems([{"apiVersion": "v1", "kind": "Pod", **one} for one in changed]) == []


def test_a_changed_pod_is_left_alone_the_next_time(running):
    webhook = running("injection", {})
    once = patched(PODS["plain"], webhook.ask(review(PODS["plain"])))
    assert webhook.ask(review(once)) == {"uid": "7", "allowed": True}


# ---- policy or webhook ----

def rendered(*settings, apis=()):
    """The kinds that Helm renders for a cluster with these APIs; or its refusal."""
    result = chart.helm("template", "x", "addend", f"--kube-version={chart.KUBERNETES}", *(f"--set={one}" for one in settings),
                        *(f"--api-versions=admissionregistration.k8s.io/{api}/MutatingAdmissionPolicy" for api in apis))
    return chart.kinds(chart.load(result.stdout)) if result.returncode == 0 else result.stderr


INJECTION = "injection.enabled=true"
ON, EVERYWHERE = "injection.webhook.enabled=true", "injection.webhook.always=true"


@pytest.mark.parametrize("settings,apis,policy", [
    ([INJECTION], ["v1", "v1beta1"], True),
    ([INJECTION], ["v1beta1"], True),
    ([INJECTION, ON], ["v1"], True),
    ([INJECTION, ON, "injection.apiVersion=admissionregistration.k8s.io/v1"], [], True),
    ([INJECTION, ON], [], False),
    ([INJECTION, ON, EVERYWHERE], ["v1"], False),
    ([INJECTION, ON, EVERYWHERE, "injection.apiVersion=admissionregistration.k8s.io/v1"], ["v1"], False),
])
def test_the_policy_is_used_where_the_cluster_has_it_and_the_webhook_elsewhere(settings, apis, policy):
    kinds = rendered(*settings, apis=apis)
    assert (set(POLICIES) <= kinds) == policy
    assert ("MutatingWebhookConfiguration" in kinds) == (not policy)


@pytest.mark.parametrize("settings,sentence", [
    ([INJECTION], "Set injection.webhook.enabled=true"),
    ([ON], "set injection.enabled=true too"),
    ([INJECTION, EVERYWHERE], "injection.webhook.always needs injection.webhook.enabled=true"),
    ([INJECTION, ON, "rbac.clusterScoped=false"], "the configuration of a webhook, which belong to no namespace"),
    ([INJECTION, ON, "injection.webhook.tlsSecretName=a"], "go together"),
    ([INJECTION, ON, "injection.webhook.caBundle=aaaa"], "go together"),
])
def test_settings_of_the_webhook_that_do_not_go_together_are_refused_in_a_sentence(settings, sentence):
    assert sentence in rendered(*settings)


def test_without_injection_there_is_no_webhook():
    assert "MutatingWebhookConfiguration" not in rendered()


# ---- its objects ----

def configured(*settings, variant="webhook"):
    objects = chart.render(variant, *settings)
    configuration = chart.find(objects, "MutatingWebhookConfiguration")
    only, = configuration["webhooks"]
    return objects, configuration, only


def test_kubernetes_asks_about_new_labelled_pods_only_and_waits_five_seconds():
    _, _, webhook = configured()
    assert webhook["objectSelector"]["matchLabels"] == {"addend.io/inject": "true"}
    assert [(rule["resources"], rule["operations"], rule["apiGroups"]) for rule in webhook["rules"]] == [(["pods"], ["CREATE"], [""])]
    assert (webhook["timeoutSeconds"], webhook["sideEffects"], webhook["reinvocationPolicy"]) == (5, "None", "Never")
    assert webhook["admissionReviewVersions"] == ["v1"]


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_the_failure_policy_is_also_that_of_a_webhook_that_does_not_answer(policy):
    objects, _, webhook = configured(f"injection.failurePolicy={policy}")
    assert webhook["failurePolicy"] == settings_of(objects)["failurePolicy"] == policy


def test_the_webhook_blocks_neither_its_own_pods_nor_the_systems():
    objects, _, webhook = configured()
    assert {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]} in webhook["namespaceSelector"]["matchExpressions"]
    excluded, = webhook["objectSelector"]["matchExpressions"]
    assert excluded["operator"] == "NotIn"
    own = chart.find(objects, "Deployment", "webhook")["spec"]["template"]["metadata"]["labels"]
    assert own[excluded["key"]] in excluded["values"]
    assert all("addend.io/inject" not in labels for _, labels, _, _ in chart.pods(objects))


def test_the_namespaces_are_those_of_the_values_too():
    _, _, webhook = configured("injection.webhook.enabled=true", "injection.webhook.always=true", variant="injection")
    assert webhook["namespaceSelector"]["matchLabels"] == {"addend.io/training": "true"}
    assert len(webhook["namespaceSelector"]["matchExpressions"]) == 1


def test_kubernetes_finds_the_webhook_by_its_service():
    objects, _, webhook = configured()
    address = webhook["clientConfig"]["service"]
    service = chart.find(objects, "Service", "webhook")
    assert (address["name"], address["namespace"]) == (service["metadata"]["name"], service["metadata"]["namespace"])
    port, = service["spec"]["ports"]
    container, = chart.find(objects, "Deployment", "webhook")["spec"]["template"]["spec"]["containers"]
    assert address["port"] == port["port"] and port["targetPort"] in [one["name"] for one in container["ports"]]
    assert address["path"] == "/mutate"


def test_the_pods_are_replaced_when_the_settings_change():
    def marked(*settings):
        template = chart.find(chart.render("webhook", *settings), "Deployment", "webhook")["spec"]["template"]
        return template["metadata"]["annotations"]["addend.io/settings"]
    assert marked() == marked("scheduler.lease=9s") != marked("agent.modelBytes=5")


def test_webhooks_are_on_different_machines_if_there_are_several():
    spec = chart.find(chart.render("webhook"), "Deployment", "webhook")["spec"]
    rule, = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spec["replicas"] == 2
    assert rule["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert rule["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_network_policy_lets_the_api_server_in_and_the_webhook_call_nobody():
    spec = chart.find(chart.render("webhook"), "NetworkPolicy", "webhook")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"] and spec["egress"] == []
    assert spec["ingress"] == [{"ports": [{"port": 9443}]}]


def test_the_binary_takes_the_arguments_of_the_chart():
    container, = chart.find(chart.render("webhook"), "Deployment", "webhook")["spec"]["template"]["spec"]["containers"]
    known = run_binary("addendctl", "--help").stdout
    assert container["command"] == ["/usr/bin/addendctl", "webhook"]
    for argument in container["args"]:
        assert f"{argument.split('=')[0]}=" in known, argument
    paths = {argument.split("=")[1].rsplit("/", 1)[0] for argument in container["args"] if "=/" in argument}
    assert paths == {mount["mountPath"] for mount in container["volumeMounts"]}


# ---- its certificate ----

def test_a_generated_certificate_serves_the_name_that_the_api_server_checks(tmp_path):
    objects, _, configuration = configured()
    secret = chart.find(objects, "Secret")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_bytes(base64.b64decode(secret["data"][name]))
    assert configuration["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
    with Webhook(tmp_path / "webhook", tmp_path, settings_of(objects)) as webhook:
        with webhook.connect("rel-addend-webhook.addend-system.svc") as connection:
            assert connection.version() == "TLSv1.3"


def test_with_cert_manager_the_authority_comes_from_its_certificate_which_members_do_not_accept():
    objects, configuration, webhook = configured("injection.webhook.enabled=true", "injection.webhook.always=true", variant="tls-cert-manager")
    certificate = chart.find(objects, "Certificate", "webhook-tls")
    named = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert named == f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert "caBundle" not in webhook["clientConfig"] and "Secret" not in chart.kinds(objects)
    assert "rel-addend-webhook.addend-system.svc" in certificate["spec"]["dnsNames"]
    checked = {chart.environment(c).get("ADDEND_TLS_SERVER_NAME") for _, _, _, spec in chart.pods(objects) for c in chart.containers(spec)} - {None}
    assert checked and not checked & set(certificate["spec"]["dnsNames"])
    assert "client auth" not in certificate["spec"]["usages"]
    volumes = chart.find(objects, "Deployment", "webhook")["spec"]["template"]["spec"]["volumes"]
    assert certificate["spec"]["secretName"] in [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]


def test_an_existing_secret_is_used_with_its_authority():
    objects, _, webhook = configured("injection.webhook.tlsSecretName=mine", "injection.webhook.caBundle=YWJj")
    assert webhook["clientConfig"]["caBundle"] == "YWJj" and "Secret" not in chart.kinds(objects)
    volumes = chart.find(objects, "Deployment", "webhook")["spec"]["template"]["spec"]["volumes"]
    assert "mine" in [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]
