"""deploy/examples, as far as they can run without Kubernetes."""
import yaml

from tests.support.cluster import PYTHON, ROOT, Cluster

EXAMPLES = ROOT / "deploy" / "examples"


def test_the_trainer_of_the_plain_job_sums_on_two_nodes(tmp_path):
    """Its script and variables as the file has them; the completion index and ADDEND_SOCKET as Kubernetes and the sidecar give them."""
    job = yaml.safe_load((EXAMPLES / "job.yaml").read_text())["spec"]
    trainer, = job["template"]["spec"]["containers"]
    assert trainer["command"][:2] == ["python3", "-c"]
    with Cluster(tmp_path, nodes=job["completions"], cpu_servers=1) as cluster:
        ranks = [cluster.start(f"node{index}", [PYTHON, *trainer["command"][1:]], env=environment(cluster, trainer, index), host=index + 1)
                 for index in range(job["completions"])]
        for index, process in enumerate(ranks):
            assert process.wait(60) == 0, process.text()
            assert f"rank {index} of 2: 100 rounds, all right" in process.text()


def environment(cluster, trainer, index):
    said = {}
    for variable in trainer["env"]:
        if "valueFrom" in variable:
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            said[variable["name"]] = str(index)
        else:
            said[variable["name"]] = variable["value"].replace("$(RANK)", said.get("RANK", ""))
    given = cluster.rank_environment(index)
    torchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    return {**{name: value for name, value in given.items() if name not in torchrun}, **said}
