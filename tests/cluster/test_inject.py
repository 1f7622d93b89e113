"""addendctl inject: another YAML reader reads its output and compares it with the requirements of Kubernetes."""
import pytest
import yaml

from tests.support.cluster import Cluster, ROOT, run_binary

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: digits}
spec:
  completionMode: Indexed
  completions: 4
  parallelism: 4
  template:
    metadata: {annotations: {number: "0", yes: "yes"}}
    spec:
      restartPolicy: Never
      initContainers:
      - {name: fetch, image: fetch}
      containers:
      - name: trainer
        image: me/train:1
        command: [bash, -c]
        args:
        - |
          set -e
            echo "$A: x"   # no comment

          torchrun train.py
        env: [{name: A, value: "5"}]
        resources: {limits: {nvidia.com/gpu: 8}}
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec:
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        completionMode: Indexed
        parallelism: 3
        completions: 3
        template: {spec: {containers: [{name: trainer, image: t}]}}
  - name: eval
    template:
      spec: {completionMode: Indexed, template: {spec: {containers: [{name: eval, image: e}]}}}
"""
PYTORCH = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: torch}
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: {spec: {containers: [{name: pytorch, image: t}]}}
    Worker:
      replicas: 3
      template: {spec: {containers: [{name: pytorch, image: t}]}}
"""


@pytest.fixture
def inject(tmp_path):
    """Runs addendctl inject on a text; returns subprocess's result."""
    def run(text, *flags):
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return run_binary("addendctl", "inject", "-f", path, "--scheduler=sched:7070", *flags)
    return run


def documents(result):
    assert result.returncode == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def refusal(result):
    assert result.returncode == 64, (result.returncode, result.stdout)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def pod_of_job(document):
    return document["spec"]["template"]["spec"]


def sidecar(pod):
    found = [container for container in pod["initContainers"] if container["name"] == "addend-agent"]
    assert len(found) == 1
    return found[0]


def environment(container):
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def field(path):
    return {"fieldRef": {"fieldPath": path}}


COMPLETION_INDEX = field("metadata.annotations['batch.kubernetes.io/job-completion-index']")


def test_a_job_gets_the_agent_as_a_native_sidecar(inject):
    [document] = documents(inject(JOB, "--model-bytes=1GB", "--image=me/agent:7"))
    pod = pod_of_job(document)
    agent = sidecar(pod)
    assert agent["restartPolicy"] == "Always" and agent["image"] == "me/agent:7"
    env = environment(agent)
    assert env["ADDEND_SCHEDULER"] == "sched:7070"
    assert env["ADDEND_JOB"] == "$(POD_NAMESPACE).digits" and env["POD_NAMESPACE"] == field("metadata.namespace")
    assert list(env).index("POD_NAMESPACE") < list(env).index("ADDEND_JOB")  # Kubernetes expands earlier variables only
    assert env["ADDEND_NUM_NODES"] == "4" and env["ADDEND_LOCAL_SIZE"] == "8"
    assert env["ADDEND_NODE_RANK"] == COMPLETION_INDEX
    assert env["ADDEND_SOCKET_MODE"] == "0660"
    need = -(-(11 * 10**9 + (128 << 20)) // (1 << 20))  # (L + 3) M + 128 MiB, in whole MiB
    assert agent["resources"]["limits"]["memory"] == f"{need}Mi" == agent["resources"]["requests"]["memory"]


def test_trainers_reach_the_agents_socket_as_another_user(inject):
    pod = pod_of_job(documents(inject(JOB))[0])
    trainer = pod["containers"][0]
    assert environment(trainer) == {"A": "5", "ADDEND_SOCKET": "/run/addend/agent.sock"}
    mount = {"name": "addend-run", "mountPath": "/run/addend"}
    assert trainer["volumeMounts"] == [mount] and mount in sidecar(pod)["volumeMounts"]
    assert pod["volumes"] == [{"name": "addend-run", "emptyDir": {}}]
    assert pod["securityContext"] == {"fsGroup": 65532}
    assert environment(sidecar(pod))["ADDEND_SOCKET"] == environment(trainer)["ADDEND_SOCKET"]


def test_the_pods_own_group_is_kept(inject):
    text = JOB.replace("restartPolicy: Never", "securityContext: {fsGroup: 1000, runAsUser: 0}")
    assert pod_of_job(documents(inject(text))[0])["securityContext"] == {"fsGroup": 1000, "runAsUser": 0}


def test_the_rest_of_the_job_is_unchanged(inject):
    [document] = documents(inject(JOB))
    labels = document["spec"]["template"]["metadata"].pop("labels")
    assert labels == {"addend.io/inject": "true"}, "by which monitors find sidecars, and which keeps the admission policy away"
    pod = pod_of_job(document)
    pod["initContainers"] = [container for container in pod["initContainers"] if container["name"] != "addend-agent"]
    del pod["volumes"], pod["securityContext"], pod["containers"][0]["volumeMounts"]
    pod["containers"][0]["env"].pop()
    assert document == yaml.safe_load(JOB)


def test_other_documents_pass_through_to_the_letter(inject):
    config = "# a comment\napiVersion: v1\nkind: ConfigMap   # stays\ndata: {a: '0'}\n"
    result = inject(config + "---\n" + JOB)
    assert result.stdout.startswith(config + "---\n")
    assert "ConfigMap is printed as it is" in result.stderr


def test_the_sidecar_is_the_charts(inject):
    """addendctl prints the chart's own file with its placeholders filled in, so that there is a single definition."""
    text = (ROOT / "deploy" / "helm" / "addend" / "files" / "sidecar.yaml").read_text()
    values = {"image": "me/agent:7", "pullPolicy": "IfNotPresent", "scheduler": "sched:7070", "job": "$(POD_NAMESPACE).digits", "numNodes": "4",
              "localSize": "8", "cpu": "3", "memory": "1024Mi", "insecure": "true",
              "nodeRank": "valueFrom: {fieldRef: {fieldPath: \"" + COMPLETION_INDEX["fieldRef"]["fieldPath"] + "\"}}"}
    for name, value in values.items():
        text = text.replace("{{ ." + name + " }}", value)
    pod = pod_of_job(documents(inject(JOB, "--image=me/agent:7", "--agent-cpu=3"))[0])
    expected = yaml.safe_load(text)
    expected["env"].insert(0, {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")})
    assert sidecar(pod) == expected


def test_two_namespaces_jobs_of_one_name_are_two_jobs_also_where_the_name_is_said(inject):
    agent = sidecar(pod_of_job(documents(inject(JOB, "--job=mine"))[0]))
    assert environment(agent)["ADDEND_JOB"] == "$(POD_NAMESPACE).mine"


def test_the_agents_resources_can_be_said(inject):
    agent = sidecar(pod_of_job(documents(inject(JOB, "--agent-cpu=3", "--agent-cpu-limit=3", "--agent-memory=6Gi"))[0]))
    assert agent["resources"] == {"requests": {"cpu": "3", "memory": "6Gi"}, "limits": {"cpu": "3", "memory": "6Gi"}}
    assert "cpu" not in sidecar(pod_of_job(documents(inject(JOB))[0]))["resources"]["limits"]


def test_gradients_can_take_a_second_network_of_the_pod(inject):
    assert environment(sidecar(pod_of_job(documents(inject(JOB, "--agent-data-interface=net1"))[0])))["ADDEND_DATA_INTERFACE"] == "net1"
    assert "ADDEND_DATA_INTERFACE" not in environment(sidecar(pod_of_job(documents(inject(JOB))[0])))


def test_the_agents_image_is_pulled_with_a_secret(inject):
    pod = pod_of_job(documents(inject(JOB, "--image-pull-secret=pull"))[0])
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    text = JOB.replace("restartPolicy: Never", "imagePullSecrets: [{name: pull}, {name: own}]")
    assert pod_of_job(documents(inject(text, "--image-pull-secret=pull"))[0])["imagePullSecrets"] == [{"name": "pull"}, {"name": "own"}]


def test_labels_of_the_pods_are_kept(inject):
    text = JOB.replace("metadata: {annotations", "metadata: {labels: {mine: \"1\"}, annotations")
    document, = documents(inject(text))
    assert document["spec"]["template"]["metadata"]["labels"] == {"mine": "1", "addend.io/inject": "true"}


def test_replicas_of_a_jobset_number_their_nodes_one_after_the_other(inject):
    [document] = documents(inject(JOBSET))
    workers, evaluation = document["spec"]["replicatedJobs"]
    agent = sidecar(workers["template"]["spec"]["template"]["spec"])
    env = environment(agent)
    assert env["ADDEND_NUM_NODES"] == "6"
    assert env["ADDEND_NODE_RANK"] == COMPLETION_INDEX
    assert env["JOBSET_JOB_INDEX"] == field("metadata.labels['jobset.sigs.k8s.io/job-index']")
    assert env["ADDEND_NODE_RANK_BASE"] == "$(JOBSET_JOB_INDEX)*3"
    names = [variable["name"] for variable in agent["env"]]
    assert names.index("JOBSET_JOB_INDEX") < names.index("ADDEND_NODE_RANK_BASE")  # Kubernetes expands earlier variables only
    assert evaluation == yaml.safe_load(JOBSET)["spec"]["replicatedJobs"][1]


def test_a_part_of_a_jobset_is_chosen_by_name(inject):
    [document] = documents(inject(JOBSET, "--replicated-job=eval"))
    workers, evaluation = document["spec"]["replicatedJobs"]
    assert workers == yaml.safe_load(JOBSET)["spec"]["replicatedJobs"][0]
    assert environment(sidecar(evaluation["template"]["spec"]["template"]["spec"]))["ADDEND_NUM_NODES"] == "1"
    assert "no replicated job is called 'x'" in refusal(inject(JOBSET, "--replicated-job=x"))


def test_the_master_of_a_pytorchjob_is_node_0_and_workers_follow(inject):
    [document] = documents(inject(PYTORCH))
    specs = document["spec"]["pytorchReplicaSpecs"]
    master, worker = (environment(sidecar(specs[name]["template"]["spec"])) for name in ("Master", "Worker"))
    assert master["ADDEND_NUM_NODES"] == worker["ADDEND_NUM_NODES"] == "4"
    assert master["ADDEND_LOCAL_SIZE"] == worker["ADDEND_LOCAL_SIZE"] == "2"
    assert master["ADDEND_NODE_RANK"] == "0" and "ADDEND_NODE_RANK_BASE" not in master
    assert worker["ADDEND_NODE_RANK"] == field("metadata.labels['training.kubeflow.org/replica-index']")
    assert worker["ADDEND_NODE_RANK_BASE"] == "1"


def test_workers_without_a_master_begin_at_0(inject):
    document = yaml.safe_load(PYTORCH)
    del document["spec"]["pytorchReplicaSpecs"]["Master"]
    [document] = documents(inject(yaml.safe_dump(document)))
    env = environment(sidecar(document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]))
    assert env["ADDEND_NUM_NODES"] == "3" and "ADDEND_NODE_RANK_BASE" not in env


MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: mpi}
spec:
  slotsPerWorker: 4
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{name: mpirun, image: t}]}}
    Worker:
      replicas: 3
      template: {spec: {containers: [{name: worker, image: t}]}}
"""


def test_the_workers_of_an_mpijob_are_nodes_and_its_launcher_is_not(inject):
    [document] = documents(inject(MPI))
    specs = document["spec"]["mpiReplicaSpecs"]
    env = environment(sidecar(specs["Worker"]["template"]["spec"]))
    assert (env["ADDEND_NUM_NODES"], env["ADDEND_LOCAL_SIZE"]) == ("3", "4")
    assert env["ADDEND_NODE_RANK"] == field("metadata.labels['training.kubeflow.org/replica-index']")
    assert specs["Launcher"] == yaml.safe_load(MPI)["spec"]["mpiReplicaSpecs"]["Launcher"]
    assert "runLauncherAsWorker: false" in refusal(inject(MPI.replace("slotsPerWorker: 4", "runLauncherAsWorker: true")))


GROUPS = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: lws}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 4
    leaderTemplate: {spec: {containers: [{name: leader, image: t}]}}
    workerTemplate: {metadata: {labels: {a: b}}, spec: {containers: [{name: worker, image: t}]}}
"""


def test_each_group_of_a_leaderworkerset_is_a_job(inject):
    [document] = documents(inject(GROUPS))
    parts = document["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        agent = sidecar(parts[part]["spec"])
        env = environment(agent)
        assert env["ADDEND_NUM_NODES"] == "4"
        assert env["ADDEND_NODE_RANK"] == field("metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']")
        assert env["ADDEND_JOB"] == "$(POD_NAMESPACE).lws-$(LWS_GROUP_INDEX)"
        assert env["LWS_GROUP_INDEX"] == field("metadata.labels['leaderworkerset.sigs.k8s.io/group-index']")
        names = [variable["name"] for variable in agent["env"]]
        assert names.index("LWS_GROUP_INDEX") < names.index("ADDEND_JOB")  # Kubernetes expands earlier variables only
    [document] = documents(inject(GROUPS.replace("replicas: 2", "replicas: 1")))
    env = environment(sidecar(document["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]))
    assert env["ADDEND_JOB"] == "$(POD_NAMESPACE).lws"


POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: one
  labels: {addend.io/inject: "true"}
spec: {containers: [{name: trainer, image: t, resources: {limits: {nvidia.com/gpu: 2}}}]}
"""


def test_a_marked_pod_is_a_node(inject):
    env = environment(sidecar(documents(inject(POD))[0]["spec"]))
    assert (env["ADDEND_NUM_NODES"], env["ADDEND_NODE_RANK"], env["ADDEND_LOCAL_SIZE"]) == ("1", "0", "2")
    of_three = POD.replace("name: one", "name: one\n  annotations: {addend.io/num-nodes: \"3\", addend.io/node-rank: \"2\", addend.io/job: both}")
    env = environment(sidecar(documents(inject(of_three))[0]["spec"]))
    assert (env["ADDEND_NUM_NODES"], env["ADDEND_NODE_RANK"], env["ADDEND_JOB"]) == ("3", "2", "$(POD_NAMESPACE).both")
    assert "from 0 to 2" in refusal(inject(of_three.replace("node-rank: \"2\"", "node-rank: \"3\"")))
    assert "needs its rank" in refusal(inject(of_three.replace(", addend.io/node-rank: \"2\"", "")))


@pytest.mark.parametrize("kind,api,words", [
    ("TrainJob", "trainer.kubeflow.org/v1alpha1", "runtimeRef"),
    ("RayJob", "ray.io/v1", "no rank before Ray starts"),
])
def test_objects_whose_pods_cannot_be_nodes_are_refused_with_a_way_out(inject, kind, api, words):
    assert words in refusal(inject(f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\n"))


def test_the_agent_gets_certificates_and_the_jobs_secret(inject):
    pod = pod_of_job(documents(inject(JOB, "--agent-tls-secret=certs", "--agent-tls-server-name=members", "--job-secret=ours"))[0])
    agent = sidecar(pod)
    env = environment(agent)
    assert env["ADDEND_INSECURE"] == "false" and env["ADDEND_TLS_SERVER_NAME"] == "members"
    files = {env[name] for name in ("ADDEND_TLS_CERT", "ADDEND_TLS_KEY", "ADDEND_TLS_CA", "ADDEND_JOB_SECRET_FILE")}
    assert files == {"/etc/addend/tls/tls.crt", "/etc/addend/tls/tls.key", "/etc/addend/tls/ca.crt", "/etc/addend/secret/secret"}
    assert {(mount["name"], mount["mountPath"]) for mount in agent["volumeMounts"]} >= {
        ("addend-tls", "/etc/addend/tls"), ("addend-secret", "/etc/addend/secret")}
    secrets = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    assert all(mount["readOnly"] is True for mount in agent["volumeMounts"] if mount["name"] in secrets)
    # As the chart mounts them: the group of the agent's image may read.
    assert secrets == {"addend-tls": {"secretName": "certs", "defaultMode": 0o440}, "addend-secret": {"secretName": "ours", "defaultMode": 0o440}}
    assert not any(mount["name"].startswith("addend-t") for mount in pod["containers"][0]["volumeMounts"]), "not the trainers'"


# ---- as a KRM function ----
def resource_list(*items, **options):
    return yaml.safe_dump({"apiVersion": "config.kubernetes.io/v1", "kind": "ResourceList", "items": [yaml.safe_load(item) for item in items],
                           "functionConfig": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "addend"}, "data": options}})


MARKED = JOB.replace("metadata: {name: digits}", "metadata: {name: digits, annotations: {addend.io/inject: \"true\"}}")


def test_kustomize_gets_its_list_back_with_the_marked_jobs_injected(inject):
    cron = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: backup}\nspec: {template: {spec: {containers: [{name: a, image: a}]}}}\n"
    options = {"scheduler": "other:7070", "model-bytes": "1GB", "agent-cpu": "3", "job-secret": "ours"}
    answer = yaml.safe_load(inject(resource_list(MARKED, cron, **options)).stdout)
    assert (answer["kind"], answer["apiVersion"]) == ("ResourceList", "config.kubernetes.io/v1")
    training, backup = answer["items"]
    agent = sidecar(pod_of_job(training))
    assert environment(agent)["ADDEND_SCHEDULER"] == "other:7070" and agent["resources"]["requests"]["cpu"] == "3"
    assert "addend-secret" in {volume["name"] for volume in pod_of_job(training)["volumes"]}
    assert backup == yaml.safe_load(cron), "a Job that trains nothing"
    assert any("becomes job NAMESPACE.digits: 4 nodes" in one["message"] and one["severity"] == "info" for one in answer["results"])


def test_options_of_the_function_are_checked(inject):
    assert "knows no option 'scheduller'" in refusal(inject(resource_list(MARKED, scheduller="a:1")))
    assert "model-bytes" in refusal(inject(resource_list(MARKED, **{"model-bytes": "much"})))
    assert "local-size must be a number" in refusal(inject(resource_list(MARKED, **{"local-size": "two"})))


def test_without_the_models_size_the_memory_is_a_reported_guess(inject):
    result = inject(JOB)
    assert sidecar(pod_of_job(documents(result)[0]))["resources"]["limits"]["memory"] == "1024Mi"
    assert "--model-bytes" in result.stderr


def test_a_loopback_scheduler_is_replaced_by_the_charts(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    result = run_binary("addendctl", "inject", "-f", tmp_path / "job.yaml")
    env = environment(sidecar(pod_of_job(documents(result)[0])))
    assert env["ADDEND_SCHEDULER"] == "addend-scheduler.addend:7070"
    assert "--scheduler" in result.stderr


@pytest.mark.parametrize("change,line,words", [
    (("completionMode: Indexed", "completionMode: NonIndexed"), 5, "not indexed"),
    (("parallelism: 4", "parallelism: 2"), 5, "run together"),
    (("parallelism: 4", "parallelism: many"), 7, "must be a number"),
    (("      containers:\n", "      others:\n"), 11, "no containers"),
    (("env: [{name: A", "env: [{name: ADDEND_SOCKET"), 15, "sets ADDEND_SOCKET itself"),
    (("metadata: {name: digits}", "metadata: {generateName: digits-}"), 1, "--job=NAME"),
    (("kind: Job", "kind: [Job"), None, "not YAML"),
])
def test_unsupported_jobs_are_refused_with_file_and_line(inject, change, line, words):
    assert change[0] in JOB
    message = refusal(inject(JOB.replace(*change)))
    assert words in message
    assert f"job.yaml:{line or ''}" in message


def test_a_second_time_is_refused(inject):
    once = inject(JOB)
    assert "has the agent already" in refusal(inject(once.stdout))


def test_a_file_without_a_training_job_is_refused(inject):
    assert "nothing to inject" in refusal(inject("apiVersion: v1\nkind: Pod\n"))


def test_one_name_for_two_jobs_is_refused(inject):
    two = JOB + "---\n" + JOB.replace("digits", "letters")
    assert len(documents(inject(two))) == 2
    assert "--job=x names one" in refusal(inject(two, "--job=x"))


def test_missing_files_are_named(tmp_path):
    assert "cannot be read" in refusal(run_binary("addendctl", "inject", "-f", tmp_path / "none.yaml"))
    assert "cannot be read" in refusal(run_binary("addendctl", "inject", "-f", tmp_path))
    assert "needs a file" in refusal(run_binary("addendctl", "inject"))


def test_programs_get_the_notes_beside_the_yaml(inject):
    result = inject(JOB, "--json")
    answer = yaml.safe_load(result.stdout)
    assert yaml.safe_load(answer["yaml"])["kind"] == "Job"
    assert any("1Gi" in note for note in answer["notes"])


# ---- the agent's options that the sidecar uses ----
def test_the_socket_has_the_permissions_that_were_asked_for(tmp_path):
    with Cluster(tmp_path, nodes=2, flags_of_node=lambda node: ["--socket-mode=0660"] if node == 1 else []) as cluster:
        assert cluster.socket(0).stat().st_mode & 0o777 == 0o600
        assert cluster.socket(1).stat().st_mode & 0o777 == 0o660


def test_a_nodes_rank_is_its_base_plus_its_rank(tmp_path):
    """Four nodes in two groups of two, as a JobSet numbers them."""
    def flags(node):
        return [f"--node-rank={node % 2}", f"--node-rank-base={node // 2}*2"]
    with Cluster(tmp_path, nodes=4, flags_of_node=flags) as cluster:
        nodes = cluster.addendctl("nodes")
        assert sorted(node["node_rank"] for node in nodes) == [0, 1, 2, 3]
        assert all(node["connected"] for node in nodes)


@pytest.mark.parametrize("flags,words", [
    (["--node-rank=1", "--node-rank-base=1*2", "--num-nodes=3"], "is node 3, but must be from 0 to 2"),
    (["--node-rank-base=2*"], "must be a number, or a product"),
    (["--node-rank-base=70000*70000*70000"], "must be a number, or a product"),
    (["--socket-mode=0666"], "use 0600 or 0660"),
])
def test_invalid_ranks_and_modes_are_refused(flags, words):
    result = run_binary("addend-agent", "--job=j", *flags)
    assert result.returncode == 64 and words in result.stderr
