"""The admission policies, compiled and evaluated by Kubernetes' own packages (of Debian's newest suite): policies/main.go.

Without it nobody would notice an expression that tests/deploy/cel.py understands and the API server refuses.
"""
import copy
import hashlib
import json
import pathlib
import subprocess

import pytest

from tests.debian import root
from tests.deploy import cel, chart
from tests.deploy.test_helm_injection import REFUSED, indexed, pod

pytestmark = pytest.mark.full
SOURCE = pathlib.Path(__file__).parent / "policies" / "main.go"
POLICIES = ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy")
WITH_POLICIES = [variant for variant in chart.VARIANTS if set(POLICIES) & chart.kinds(chart.render(variant))]
PODS = {
    "plain": pod(indexed()),
    "said": pod(indexed(**{"addend.io/local-size": "8", "addend.io/model-bytes": "1000", "addend.io/cpu": "3", "addend.io/cpu-limit": "4"})),
    "memory": pod(indexed(**{"addend.io/memory": "6Gi", "addend.io/job": "mine", "addend.io/node-rank": "1"}), {}),
    "jobset": pod({"addend.io/num-nodes": "6", "batch.kubernetes.io/job-completion-index": "1"},
                  {"jobset.sigs.k8s.io/jobset-name": "j", "jobset.sigs.k8s.io/job-index": "2", "jobset.sigs.k8s.io/replicatedjob-replicas": "3"}),
    "worker": pod({"addend.io/num-nodes": "5"}, {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/replica-type": "worker",
                                                 "training.kubeflow.org/replica-index": "3"}),
    "own": pod(indexed(), initContainers=[{"name": "fetch", "image": "busybox"}], volumes=[{"name": "data", "emptyDir": {}}],
               securityContext={"fsGroup": 7}, imagePullSecrets=[{"name": "own"}]),
    "has one": pod({}, {}, initContainers=[{"name": "addend-agent", "image": "mine"}]),
    **{f"refused {i}": pod(annotations, labels) for i, (annotations, labels, _) in enumerate(REFUSED)},
}


@pytest.fixture(scope="module")
def evaluator():
    """Runs policies/main.go, which is compiled once, on policies and pods; returns its answer."""
    root.root_or_skip("sid-policies")
    program = root.KEPT / f"policies-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        made = program.with_suffix(".new")
        root.run_in("sid-policies", ["go", "build", "-o", made, SOURCE], GO111MODULE="off", GOPATH="/usr/share/gocode",
                    GOCACHE=root.KEPT / "go", HOME="/tmp", CGO_ENABLED="0")
        made.rename(program)

    def evaluate(policies, pods):
        given = [copy.deepcopy(one) for one in pods]
        for name, one in zip(PODS, given):
            one["metadata"]["name"] = name
        answer = subprocess.run([program], input=json.dumps({"policies": policies, "pods": given, "namespace": "team-a"}), capture_output=True,
                                text=True, timeout=120, check=False)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)
    return evaluate


def plain(value):
    """Without the empty fields that Kubernetes' types add."""
    if isinstance(value, dict):
        kept = {key: plain(one) for key, one in value.items() if key not in ("creationTimestamp", "status")}
        return {key: one for key, one in kept.items() if one not in (None, {}, [])}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


@pytest.mark.parametrize("variant", WITH_POLICIES)
def test_the_api_server_takes_the_policies_and_does_what_we_think_it_does(evaluator, variant):
    policies = [o for o in chart.render(variant) if o["kind"] in POLICIES]
    mutating, validating = (next(o for o in policies if o["kind"] == kind) for kind in POLICIES)
    answer = evaluator(sorted(policies, key=lambda o: o["kind"]), list(PODS.values()))
    assert answer["errors"] == []
    for name, admitted, refused in zip(PODS, answer["admitted"], answer["refused"]):
        ours = cel.admit(mutating, PODS[name], "team-a")
        assert refused == cel.refusals(validating, ours, "team-a"), name
        assert plain(admitted["spec"]) == plain(ours["spec"]), name


@pytest.mark.parametrize("change,part", [
    # As the chart once was: an expression of unknown type beside a text.
    (('string(variables.memory)', 'variables.memory'), "expected type 'string' but found 'dyn'"),
    (('Object.spec.initContainers.ports{', 'Object.spec.initContainers.port{'), "Object.spec.initContainers.port"),
    (('variables.nodeRank', 'variables.nodeRnk'), "undefined field 'nodeRnk'"),
])
def test_a_wrong_expression_is_noticed(evaluator, change, part):
    policy = chart.find(chart.render("injection"), "MutatingAdmissionPolicy")
    wrong = json.loads(json.dumps(policy).replace(*change))
    assert wrong != policy
    assert any(part in error for error in evaluator([wrong], [PODS["plain"]])["errors"])
