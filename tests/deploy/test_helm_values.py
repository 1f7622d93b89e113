"""Each value of values.yaml changes what is rendered: with a variant of ci/ in which it counts, and another value than its own there."""
import base64

import yaml
import pytest

from tests.deploy import chart
from tests.deploy.test_values import VALUES, readme

OPERATOR = ("monitoring.coreos.com/v1",)

# Values whose other value does not follow from their type.
OTHERS = {
    "fullnameOverride": "other", "clusterDomain": "other.local", "logFormat": "text", "logLevel": "warn",
    "global.imagePullSecrets": [{"name": "other"}], "commonLabels": {"other": "label"},
    "scheduler.replicas": 5, "scheduler.store": "memory", "scheduler.lease": "9s", "scheduler.persistence.size": "2Gi",
    "scheduler.service.type": "NodePort", "scheduler.service.nodePorts": {"http": 30080},
    "scheduler.service.loadBalancerSourceRanges": ["10.0.0.0/8"], "scheduler.service.ipFamilyPolicy": "PreferDualStack",
    "scheduler.service.ipFamilies": ["IPv6"], "scheduler.resources": {"limits": {"memory": "1Gi"}},
    "summation.memory": "12Gi", "summation.memoryHeadroom": "1234Mi", "summation.bandwidth": "7Gbps", "summation.transport": "tcp", "summation.wireEncoding": "raw",
    "summation.podDisruptionBudget.maxUnavailable": "30%", "summation.resources": {"limits": {"cpu": "6"}},
    "agent.wireEncoding": "raw", "agent.wireDtype": "int8", "agent.wireRounding": "stochastic",
    "agent.cpu": "3", "agent.memory": "7Gi", "agent.bandwidth": "7Gbps", "agent.resources": {"limits": {"cpu": "6"}},
    "agent.extraEnv": [{"name": "ADDEND_OTHER", "value": "1"}],
    "hostAgents": [{"job": "other", "numNodes": 2, "localSize": 2, "directory": "/run/other"}],
    "injection.apiVersion": "admissionregistration.k8s.io/v1beta1", "injection.failurePolicy": "Ignore",
    "injection.namespaceSelector": {"matchLabels": {"other": "label"}},
    "injection.webhook.resources": {"limits": {"memory": "1Gi"}}, "injection.webhook.caBundle": "ZGVm",
    "kubeflow.apiVersion": "trainer.kubeflow.org/v2", "kubeflow.resources": {"limits": {"memory": "9Gi"}}, "kubeflow.sharedMemory": "9Gi",
    "rdma.resource": "rdma/other", "rdma.claimTemplate": "other", "tls.certManager.issuerRef": {"name": "other", "kind": "Issuer", "group": "cert-manager.io"},
    "tls.certManager.duration": "1000h", "tls.certManager.renewBefore": "100h", "tls.certManager.agentNamespaces": ["other"],
    "autoscaling.prometheusAddress": "http://other:9090", "metrics.monitors": "never", "metrics.rules": "never",
    "metrics.interval": "20s", "metrics.scrapeTimeout": "7s", "metrics.agentNamespaceSelector": {"matchNames": ["other"]},
    "metrics.disabledAlerts": ["AddendJobStalled"], "metrics.labels": {"other": "label"},
    "metrics.dashboards.labels": {"other": "label"}, "metrics.dashboards.annotations": {"other": "note"},
    "networkPolicy.agentNamespaceSelector": {"matchLabels": {"other": "label"}},
    "networkPolicy.agentPodSelector": {"matchLabels": {"other": "label"}},
    "networkPolicy.metricsNamespaceSelector": {"matchLabels": {"other": "label"}},
    "networkPolicy.etcdPorts": [2222], "networkPolicy.apiServerPorts": [2222], "networkPolicy.extraEgress": [{"ports": [{"port": 4444}]}],
    "statusPage.ingress.authentication": {"other": "login"}, "statusPage.httpRoute.parentRefs": [{"name": "other"}],
    "statusPage.httpRoute.hostnames": ["other.example.org"], "statusPage.httpRoute.filters": [{"type": "Other"}],
    "statusPage.controllerNamespaceSelector": {"matchLabels": {"other": "label"}},
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}],
}
# By the last part of the path.
OTHERS_OF_A_KIND = {
    "pullPolicy": "Always", "digest": "sha256:" + "f" * 64, "annotations": {"other": "note"}, "podAnnotations": {"other": "note"},
    "podLabels": {"other": "label"}, "extraEnv": [{"name": "ADDEND_OTHER", "value": "1"}], "extraArgs": ["--other"],
    "extraVolumes": [{"name": "other", "emptyDir": {}}], "extraVolumeMounts": [{"name": "other", "mountPath": "/other"}],
    "extraContainers": [{"name": "other", "image": "other"}], "initContainers": [{"name": "other", "image": "other"}],
    "hostAliases": [{"ip": "10.9.9.9", "hostnames": ["other"]}], "podSecurityContext": {"fsGroup": 7}, "securityContext": {"runAsUser": 7},
    "livenessProbe": {"timeoutSeconds": 77}, "readinessProbe": {"timeoutSeconds": 77}, "startupProbe": {"timeoutSeconds": 77},
    "updateStrategy": {"rollingUpdate": {"maxUnavailable": 3}}, "nodeSelector": {"other": "label"}, "tolerations": [{"key": "other"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [{"maxSkew": 7, "topologyKey": "other", "whenUnsatisfiable": "DoNotSchedule"}],
    "relabelings": [{"action": "labeldrop", "regex": "other"}], "metricRelabelings": [{"action": "labeldrop", "regex": "other"}],
}
# Values that count only with others than any variant has.
TOGETHER_WITH = {
    "scheduler.service.loadBalancerClass": {"scheduler": {"service": {"type": "LoadBalancer"}}},
    "scheduler.etcd.user": {"scheduler": {"etcd": {"passwordSecretName": "other"}}},
    "summation.podDisruptionBudget.maxUnavailable": {"summation": {"podDisruptionBudget": {"enabled": True}}},
    "summation.priorityClass.name": {"summation": {"priorityClass": {"create": False}}},
    "tls.certManager.enabled": {"tls": {"secretName": "other"}},
    "statusPage.open": {"statusPage": {"ingress": {"enabled": True}}},
    "injection.webhook.enabled": {"injection": {"enabled": True, "webhook": {"always": False}}},
    "injection.webhook.tlsSecretName": {"injection": {"webhook": {"caBundle": "YWJj", "tlsSecretName": "first"}}},
    "injection.webhook.caBundle": {"injection": {"webhook": {"tlsSecretName": "first", "caBundle": "YWJj"}}},
}
# Values that count only on a cluster without MutatingAdmissionPolicy; Helm refuses the values of most variants there.
OLDER_CLUSTER = {"injection.webhook.enabled"}
PATHS = [path for path, _, _ in readme.entries((chart.CHART / "values.yaml").read_text())]


def at(values, path):
    for key in path.split("."):
        values = values[key]
    return values


def nested(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def merged(a, b):
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return b
    return {key: merged(a[key], b[key]) if key in a and key in b else (b if key in b else a)[key] for key in {**a, **b}}


def other_value(path, variant):
    if path in OTHERS:
        return OTHERS[path]
    kind = path.rsplit(".", 1)[-1]
    if kind in OTHERS_OF_A_KIND:
        return OTHERS_OF_A_KIND[kind]
    own = yaml.safe_load((chart.CHART / "ci" / f"{variant}-values.yaml").read_text()) or {}
    value = at(merged(VALUES, own), path)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    assert isinstance(value, str), f"say in OTHERS which other value {path} may have"
    return "other"


def variants_for(path):
    """The most likely first."""
    first = path.split(".")[0].lower()
    return sorted(chart.VARIANTS, key=lambda variant: (variant != "default" and first not in variant, variant != "default"))


def rendered(variant, values, path=None):
    policies = () if path in OLDER_CLUSTER else (chart.POLICIES,)
    objects = chart.render_values(variant, values, OPERATOR, policies)
    return None if objects is None else yaml.safe_dump([without_chance(o) for o in objects], sort_keys=True)


def without_chance(o):
    """The object without a certificate that the chart generates, another one each time."""
    if o["kind"] == "Secret":
        return {**o, "data": sorted(o["data"])}
    if o["kind"] == "MutatingWebhookConfiguration":
        webhook, = o["webhooks"]
        authority = base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
        if authority.startswith(b"-----BEGIN"):
            return {**o, "webhooks": [{**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": "generated"}}]}
    return o


def test_without_a_change_of_values_nothing_changes():
    assert all(rendered(variant, {}) == rendered(variant, {}) for variant in chart.VARIANTS)


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
def test_the_value_counts(path):
    together = TOGETHER_WITH.get(path, {})
    taken = False
    for variant in variants_for(path):
        changed = merged(together, nested(path, other_value(path, variant)))
        after = rendered(variant, changed, path)
        taken = taken or after is not None
        if after is not None and after != rendered(variant, together, path):
            return
    pytest.fail(f"{path} changes no object of any variant" if taken else f"Helm refuses the other value of {path}")
