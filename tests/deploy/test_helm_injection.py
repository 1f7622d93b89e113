"""The sidecar in training pods, by the admission policy and by the Kubeflow runtime: both from files/sidecar.yaml.

The policy's expressions are evaluated by tests/deploy/cel.py, not by an API server.
"""
import copy

import pytest

from tests.deploy import cel, chart
from tests.support.cluster import run_binary

MIB = 1 << 20
TRAINER = {"name": "trainer", "image": "python:3"}


def policy(variant="injection", *settings):
    return chart.find(chart.render(variant, *settings), "MutatingAdmissionPolicy")


def pod(annotations=None, labels=None, **spec):
    labels = {"addend.io/inject": "true", **(JOB if labels is None else labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels, "annotations": annotations or {}},
            "spec": {"containers": [copy.deepcopy(TRAINER)], **spec}}


JOB = {"batch.kubernetes.io/job-name": "j"}


def indexed(index=1, **more):
    return {"addend.io/num-nodes": "2" if index < 2 else "6", "batch.kubernetes.io/job-completion-index": str(index), **more}


def sidecar_of(admitted):
    sidecar, = [c for c in admitted["spec"]["initContainers"] if c["name"] == "addend-agent"]
    return sidecar


def inject(annotations=None, labels=None, by=None, **spec):
    return cel.admit(by or policy(), pod(annotations or indexed(), labels, **spec), "team-a")


def example(name):
    """(name, labels, annotations, pod spec) of the pods of an example."""
    return list(chart.pods(chart.load((chart.EXAMPLES / f"{name}.yaml").read_text())))


def admitted_example(labels, annotations, spec):
    """As the Job's controller makes its pod: without a name yet."""
    metadata = {"generateName": "j-", "labels": {**labels, **JOB}, "annotations": {"batch.kubernetes.io/job-completion-index": "0", **annotations}}
    return cel.admit(policy(), {"metadata": metadata, "spec": spec}, "team-a")


# ---- the pod ----

def test_kubernetes_accepts_injected_pods():
    admitted = [inject(), inject(by=policy("tls-cert-manager")), inject(by=policy("rdma"))]
    for name in ("job", "jobset", "pytorchjob"):
        admitted += [admitted_example(labels, annotations, spec) for _, labels, annotations, spec in example(name)]
    assert chart.problems([{"apiVersion": "v1", "kind": "Pod", **one} for one in admitted]) == []


def test_the_policy_gives_the_sidecar_that_the_file_describes():
    text = (chart.CHART / "files" / "sidecar.yaml").read_text()
    values = {"image": "ghcr.io/addend/addend-agent:0.1.0", "pullPolicy": "IfNotPresent", "numNodes": "2", "localSize": "1",
              "scheduler": "rel-addend-scheduler.addend-system.svc:7070", "job": "team-a.j", "nodeRank": 'value: "1"', "cpu": "2",
              "memory": str(3 * 1340000000 + 128 * MIB), "insecure": "true"}
    for name, value in values.items():
        text = text.replace("{{ .%s }}" % name, value)
    described, = chart.load(text)
    described["env"] += [{"name": "ADDEND_LOG_FORMAT", "value": "json"}, {"name": "ADDEND_LOG_LEVEL", "value": "info"}]
    assert sidecar_of(inject()) == described


def test_the_sidecar_is_a_native_one_and_comes_after_init_containers_of_the_pods_own():
    first = {"name": "fetch", "image": "busybox"}
    names = [c["name"] for c in inject(initContainers=[first])["spec"]["initContainers"]]
    assert names == ["fetch", "addend-agent"]
    assert sidecar_of(inject())["restartPolicy"] == "Always"


def test_trainers_get_the_socket_and_keep_what_they_have():
    trainer = {**TRAINER, "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    admitted = inject(containers=[trainer, {"name": "logger", "image": "busybox"}], volumes=[{"name": "data", "emptyDir": {}}])
    for container in admitted["spec"]["containers"]:
        assert chart.environment(container)["ADDEND_SOCKET"] == "/run/addend/agent.sock"
        assert {"name": "addend-run", "mountPath": "/run/addend"} in container["volumeMounts"]
    assert chart.environment(admitted["spec"]["containers"][0])["A"] == "1"
    assert [v["name"] for v in admitted["spec"]["volumes"]] == ["data", "addend-run"]


def test_trainers_of_any_user_share_the_sockets_group():
    assert inject()["spec"]["securityContext"]["fsGroup"] == 65532
    assert inject(securityContext={"fsGroup": 100, "runAsUser": 7})["spec"]["securityContext"] == {"fsGroup": 100, "runAsUser": 7}


def test_a_pod_that_has_a_sidecar_is_left_alone():
    once = inject()
    assert cel.admit(policy(), once, "team-a") == once


def test_the_policy_applies_to_new_labelled_pods_only():
    constraints = policy()["spec"]["matchConstraints"]
    assert constraints["objectSelector"] == {"matchLabels": {"addend.io/inject": "true"}}
    assert constraints["namespaceSelector"] == {"matchLabels": {"addend.io/training": "true"}}
    assert [(r["resources"], r["operations"]) for r in constraints["resourceRules"]] == [(["pods"], ["CREATE"])]


def test_the_binding_names_the_policy():
    objects = chart.render("injection")
    binding = chart.find(objects, "MutatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == chart.find(objects, "MutatingAdmissionPolicy")["metadata"]["name"]
    assert binding["apiVersion"] == "admissionregistration.k8s.io/v1beta1"


# ---- pods for which no sidecar can be made ----

REFUSED = [  # (annotations, labels, a part of the sentence)
    ({"batch.kubernetes.io/job-completion-index": "0"}, JOB, "addend.io/num-nodes must be the number of pods"),
    (None, JOB, "addend.io/num-nodes must be the number of pods"),
    (indexed(**{"addend.io/num-nodes": "two"}), JOB, "addend.io/num-nodes must be the number of pods"),
    (indexed(**{"addend.io/num-nodes": "0"}), JOB, "addend.io/num-nodes must be the number of pods"),
    (indexed(**{"addend.io/local-size": "eight"}), JOB, "addend.io/local-size must be the number of ranks"),
    (indexed(**{"addend.io/node-rank": "-1"}), JOB, "addend.io/node-rank must be the pod's place"),
    (indexed(**{"addend.io/model-bytes": "1.3e9"}), JOB, "addend.io/model-bytes must be the bytes of all tensors"),
    (indexed(**{"addend.io/memory": "6GB"}), JOB, "addend.io/memory must be the sidecar's memory"),
    (indexed(**{"addend.io/cpu": "two"}), JOB, "addend.io/cpu must be the CPUs"),
    (indexed(**{"addend.io/cpu-limit": "none"}), JOB, "addend.io/cpu-limit must be the limit"),
    (indexed(**{"addend.io/job": "a job"}), JOB, "addend.io/job must be a name"),
    (indexed(), {}, "the annotation addend.io/job must name its job"),
    ({"addend.io/num-nodes": "2"}, JOB, "completionMode: Indexed"),
    (indexed(**{"addend.io/num-nodes": "1"}), JOB, "not below the annotation addend.io/num-nodes"),
]


def validation(*settings):
    return chart.find(chart.render("injection", *settings), "ValidatingAdmissionPolicy")


@pytest.mark.parametrize("annotations,labels,sentence", REFUSED)
def test_a_pod_that_cannot_be_a_node_is_refused_with_a_sentence_and_left_alone(annotations, labels, sentence):
    refused = pod(annotations, labels)
    messages = cel.refusals(validation(), refused, "team-a")
    assert [message for message in messages if sentence in message], messages
    assert max(map(len, messages)) < 120
    assert cel.admit(policy(), refused, "team-a") == refused, "the other policy has no error of its own"


def test_a_pod_with_a_sidecar_is_not_refused():
    assert cel.refusals(validation(), inject(), "team-a") == []
    assert cel.refusals(validation(), pod({}, {}, initContainers=[{"name": "addend-agent"}]), "team-a") == []


@pytest.mark.parametrize("policy_of_failure,action", [("Fail", "Deny"), ("Ignore", "Warn")])
def test_such_a_pod_is_refused_or_only_warned_of(policy_of_failure, action):
    objects = chart.render("injection", f"injection.failurePolicy={policy_of_failure}")
    binding = chart.find(objects, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": chart.find(objects, "ValidatingAdmissionPolicy")["metadata"]["name"], "validationActions": [action]}
    assert {o["spec"]["failurePolicy"] for o in objects if o["kind"].endswith("AdmissionPolicy")} == {policy_of_failure}


def test_the_policys_api_is_the_newest_of_the_cluster():
    older = chart.helm("template", "x", "addend", "--set=injection.enabled=true", f"--kube-version={chart.KUBERNETES}",
                       "--api-versions=admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy")
    assert chart.find(chart.load(older.stdout), "MutatingAdmissionPolicy")["apiVersion"] == "admissionregistration.k8s.io/v1beta1"
    assert policy("rdma")["apiVersion"] == "admissionregistration.k8s.io/v1"


def test_pull_secrets_are_also_those_of_pods_with_a_sidecar():
    by = chart.find(chart.render_values("injection", {"global": {"imagePullSecrets": [{"name": "pull"}]}}), "MutatingAdmissionPolicy")
    assert inject(by=by)["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    kept = inject(by=by, imagePullSecrets=[{"name": "own"}])["spec"]["imagePullSecrets"]
    assert kept == [{"name": "own"}, {"name": "pull"}]
    runtime = chart.render_values("injection", {"global": {"imagePullSecrets": [{"name": "pull"}]}})
    (_, _, _, spec), = chart.pods([chart.find(runtime, "ClusterTrainingRuntime")])
    assert spec["imagePullSecrets"] == [{"name": "pull"}]


# ---- job and rank ----

@pytest.mark.parametrize("labels,annotations,job", [
    ({"batch.kubernetes.io/job-name": "j"}, {}, "team-a.j"),
    ({"batch.kubernetes.io/job-name": "j-node-0", "jobset.sigs.k8s.io/jobset-name": "j"}, {}, "team-a.j"),
    ({"training.kubeflow.org/job-name": "t"}, {}, "team-a.t"),
    ({"batch.kubernetes.io/job-name": "j"}, {"addend.io/job": "mine"}, "team-a.mine"),
    ({}, {"addend.io/job": "mine"}, "team-a.mine"),
], ids=["job", "jobset", "pytorchjob", "annotation", "bare pod"])
def test_the_job_is_named_after_its_owner_within_its_namespace(labels, annotations, job):
    assert chart.environment(sidecar_of(inject(indexed(**annotations), labels)))["ADDEND_JOB"] == job


@pytest.mark.parametrize("job_index,index,rank", [(0, 1, "1"), (1, 0, "2"), (2, 1, "5")])
def test_the_jobs_of_a_jobset_follow_each_other(job_index, index, rank):
    labels = {"jobset.sigs.k8s.io/jobset-name": "j", "jobset.sigs.k8s.io/job-index": str(job_index), "jobset.sigs.k8s.io/replicatedjob-replicas": "3"}
    admitted = inject({**indexed(index), "addend.io/num-nodes": "6"}, labels)
    assert chart.environment(sidecar_of(admitted))["ADDEND_NODE_RANK"] == rank


def test_an_indexed_jobs_pod_has_its_completion_index_as_rank():
    assert chart.environment(sidecar_of(inject(indexed(5))))["ADDEND_NODE_RANK"] == "5"


@pytest.mark.parametrize("kind,index,rank", [("master", 0, "0"), ("worker", 0, "1"), ("worker", 3, "4")])
def test_a_pytorchjobs_master_is_node_0_and_its_workers_follow(kind, index, rank):
    labels = {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/replica-type": kind, "training.kubeflow.org/replica-index": str(index)}
    assert chart.environment(sidecar_of(inject({"addend.io/num-nodes": "5"}, labels)))["ADDEND_NODE_RANK"] == rank


def test_an_annotation_can_say_the_rank():
    assert chart.environment(sidecar_of(inject(indexed(5, **{"addend.io/node-rank": "2"}))))["ADDEND_NODE_RANK"] == "2"


# ---- memory ----

@pytest.mark.parametrize("annotations,memory", [
    ({}, 3 * 1340000000 + 128 * MIB),
    ({"addend.io/model-bytes": "1000"}, 3 * 1000 + 128 * MIB),
    ({"addend.io/model-bytes": "1000", "addend.io/local-size": "1"}, 3 * 1000 + 128 * MIB),
    ({"addend.io/model-bytes": "1000", "addend.io/local-size": "8"}, 11 * 1000 + 128 * MIB),
], ids=["the chart's model", "the pod's model", "one rank", "eight ranks"])
def test_memory_is_that_of_the_models_slots_and_128_mib(annotations, memory):
    resources = sidecar_of(inject(indexed(**annotations)))["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == str(memory)


def test_memory_can_be_said_outright():
    assert sidecar_of(inject(indexed(**{"addend.io/memory": "6Gi"})))["resources"]["limits"]["memory"] == "6Gi"


def test_memory_of_the_values_holds_unless_the_pod_says_its_model():
    by = policy("injection", "agent.memory=5Gi")
    assert sidecar_of(inject(by=by))["resources"]["limits"]["memory"] == "5Gi"
    said = inject(indexed(**{"addend.io/model-bytes": "1000"}), by=by)
    assert sidecar_of(said)["resources"]["limits"]["memory"] == str(3 * 1000 + 128 * MIB)


# ---- CPUs ----

def test_a_sidecar_has_no_limit_of_its_cpu_unless_one_is_said():
    assert set(sidecar_of(inject())["resources"]["limits"]) == {"memory"}
    by = policy("injection", "agent.resources.limits.cpu=3")
    assert sidecar_of(inject(by=by))["resources"]["limits"]["cpu"] == "3"
    said = inject(indexed(**{"addend.io/cpu": "4", "addend.io/cpu-limit": "5"}), by=by)
    assert sidecar_of(said)["resources"]["requests"]["cpu"] == "4"
    assert sidecar_of(said)["resources"]["limits"]["cpu"] == "5"


def test_a_pod_stays_guaranteed_with_limits_that_equal_the_requests():
    resources = sidecar_of(inject(by=policy("injection", "agent.resources.limits.cpu=2")))["resources"]
    assert resources["requests"] == resources["limits"]


def test_the_values_of_the_sidecar_are_those_of_the_runtimes():
    values = {"agent": {"resources": {"limits": {"cpu": "3"}}, "livenessProbe": {"timeoutSeconds": 9}, "startupProbe": {"failureThreshold": 7}}}
    objects = chart.render_values("injection", values)
    (_, _, _, spec), = chart.pods([chart.find(objects, "ClusterTrainingRuntime")])
    for sidecar in (spec["initContainers"][0], sidecar_of(inject(by=chart.find(objects, "MutatingAdmissionPolicy")))):
        assert sidecar["resources"]["limits"]["cpu"] == "3"
        assert (sidecar["livenessProbe"]["timeoutSeconds"], sidecar["startupProbe"]["failureThreshold"]) == (9, 7)


# ---- TLS, secrets and RDMA ----

def test_with_tls_the_sidecar_has_a_certificate_from_its_own_namespace():
    admitted = inject(by=policy("tls-cert-manager"))
    assert {"name": "addend-tls", "secret": {"secretName": "addend-agent-tls", "defaultMode": 0o440}} in admitted["spec"]["volumes"]
    assert "/etc/addend/tls" in [m["mountPath"] for m in sidecar_of(admitted)["volumeMounts"]]
    assert chart.environment(sidecar_of(admitted))["ADDEND_TLS_CERT"] == "/etc/addend/tls/tls.crt"


def test_the_jobs_secret_comes_from_the_pods_own_namespace():
    admitted = inject(by=policy("secrets"))
    assert {"name": "addend-secret", "secret": {"secretName": "addend-jobs", "defaultMode": 0o440}} in admitted["spec"]["volumes"]
    assert "/etc/addend/secret" in [m["mountPath"] for m in sidecar_of(admitted)["volumeMounts"]]
    environment = chart.environment(sidecar_of(admitted))
    assert environment["ADDEND_JOB_SECRET_FILE"] == "/etc/addend/secret/secret"
    assert environment["ADDEND_ENCRYPT_DATA"] == "true"


def test_with_rdma_the_sidecar_has_the_nic_and_may_lock_memory():
    admitted = inject(by=policy("rdma"))
    sidecar = sidecar_of(admitted)
    assert sidecar["resources"]["limits"]["rdma/hca_shared_devices_a"] == "1"
    assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert (sidecar["securityContext"]["runAsUser"], sidecar["securityContext"]["runAsNonRoot"]) == (0, False)


CLAIM = [{"name": "addend-nic", "resourceClaimTemplateName": "nic"}]


def test_a_claim_takes_the_place_of_the_rdma_resource_in_every_pod_that_has_a_nic():
    objects = chart.render_values("rdma", {"rdma": {"claimTemplate": "nic"}, "injection": {"enabled": True}, "kubeflow": {"enabled": True}})
    admitted = inject(by=chart.find(objects, "MutatingAdmissionPolicy"), resourceClaims=[{"name": "own", "resourceClaimName": "own"}])
    assert admitted["spec"]["resourceClaims"] == [{"name": "own", "resourceClaimName": "own"}, *CLAIM]
    holders = [(admitted["spec"], sidecar_of(admitted))]
    for name, _, _, spec in chart.pods(objects):
        if name.split()[-1].endswith(("-summation", "-test")) or name.startswith("ClusterTrainingRuntime"):
            assert spec["resourceClaims"] == CLAIM, name
            holders += [(spec, container) for container in [*spec.get("initContainers", []), *spec["containers"]]
                        if "IPC_LOCK" in container.get("securityContext", {}).get("capabilities", {}).get("add", [])]
        else:
            assert "resourceClaims" not in spec, name
    assert len(holders) >= 5
    for _, container in holders:
        assert container["resources"]["claims"] == [{"name": "addend-nic"}]
        assert not any(name.startswith("rdma/") for name in container["resources"]["limits"])


# ---- the runtime of Kubeflow Trainer ----

def runtime_pod(variant="injection", *settings):
    runtime = chart.find(chart.render(variant, *settings), "ClusterTrainingRuntime")
    (_, _, _, spec), = chart.pods([runtime])
    return spec


def test_the_runtime_has_the_same_sidecar_but_for_what_differs_by_job():
    injected = sidecar_of(inject(indexed(**{"addend.io/local-size": "8"}), by=policy()))
    runtime, = runtime_pod()["initContainers"]
    differs = ("ADDEND_JOB", "ADDEND_NUM_NODES", "ADDEND_NODE_RANK", "POD_NAMESPACE", "TRAIN_JOB")
    for container in (injected, runtime):
        container["env"] = [v for v in container["env"] if v["name"] not in differs]
    assert injected == runtime


def test_the_runtimes_job_is_named_by_variables_that_are_set_before_it():
    names = [v["name"] for v in runtime_pod()["initContainers"][0]["env"]]
    env = chart.environment(runtime_pod()["initContainers"][0])
    assert env["ADDEND_JOB"] == "$(POD_NAMESPACE).$(TRAIN_JOB)"
    assert max(names.index("POD_NAMESPACE"), names.index("TRAIN_JOB")) < names.index("ADDEND_JOB")


def test_the_runtimes_nodes_ranks_and_memory_are_those_of_the_values():
    sidecar, = runtime_pod()["initContainers"]
    env = chart.environment(sidecar)
    assert (env["ADDEND_NUM_NODES"], env["ADDEND_LOCAL_SIZE"]) == ("4", "8")
    assert sidecar["resources"]["limits"]["memory"] == str(11 * 1340000000 + 128 * MIB)
    assert chart.find(chart.render("injection"), "ClusterTrainingRuntime")["spec"]["mlPolicy"]["numNodes"] == 4


def test_the_runtimes_trainer_has_the_socket_and_a_shm_for_data_loaders():
    spec = runtime_pod()
    trainer, = spec["containers"]
    assert chart.environment(trainer)["ADDEND_SOCKET"] == "/run/addend/agent.sock"
    assert {m["mountPath"] for m in trainer["volumeMounts"]} == {"/run/addend", "/dev/shm"}
    assert spec["securityContext"]["fsGroup"] == 65532


# ---- the examples ----

def test_the_examples_are_valid_and_have_no_sidecar_yet():
    objects = [o for name in ("job", "jobset", "pytorchjob") for o in chart.load((chart.EXAMPLES / f"{name}.yaml").read_text())]
    assert chart.problems(objects) == []
    assert all("initContainers" not in spec for _, _, _, spec in chart.pods(objects))


@pytest.mark.parametrize("name,nodes", [("job", "2"), ("jobset", "2"), ("pytorchjob", "3")])
def test_the_policy_makes_every_pod_of_an_example_a_node(name, nodes):
    for _, labels, annotations, spec in example(name):
        admitted = admitted_example(labels, annotations, spec)
        assert chart.environment(sidecar_of(admitted))["ADDEND_NUM_NODES"] == nodes


def test_addendctl_inject_takes_the_examples():
    injected = []
    for name in ("job", "jobset", "pytorchjob"):
        answer = run_binary("addendctl", "inject", "-f", str(chart.EXAMPLES / f"{name}.yaml"), "--model-bytes=4000000")
        assert answer.returncode == 0, answer.stderr
        injected += chart.load(answer.stdout)
    assert chart.problems(injected) == []
    assert all("addend-agent" in [c["name"] for c in spec["initContainers"]] for _, _, _, spec in chart.pods(injected))


def test_the_examples_end_a_job_for_statuses_that_another_try_cannot_help():
    policies = [chart.load((chart.EXAMPLES / "job.yaml").read_text())[0]["spec"]["podFailurePolicy"]]
    jobset, = chart.load((chart.EXAMPLES / "jobset.yaml").read_text())
    policies += [job["template"]["spec"]["podFailurePolicy"] for job in jobset["spec"]["replicatedJobs"]]
    policies += [job["template"]["spec"]["podFailurePolicy"] for job in
                 chart.find(chart.render("injection"), "ClusterTrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]]
    hopeless = hopeless_statuses()
    for rules in policies:
        failing, = [rule["onExitCodes"]["values"] for rule in rules["rules"] if rule["action"] == "FailJob"]
        assert failing == hopeless
        assert {"type": "DisruptionTarget"} in rules["rules"][0]["onPodConditions"] and rules["rules"][0]["action"] == "Ignore"


def hopeless_statuses():
    """Those of docs/operations.md whose column `retry` says no."""
    rows = [line.split("|") for line in (chart.ROOT / "docs" / "operations.md").read_text().splitlines() if line.startswith("| ")]
    return [int(row[1]) for row in rows if row[1].strip().isdigit() and row[3].strip() == "no"]
