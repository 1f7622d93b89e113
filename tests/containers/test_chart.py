"""podman runs the objects that the Helm chart renders: its images, variables, arguments, mounts and users, and the pod of `helm test`.

podman's `kube play` (4.3) is not used: it waits for native sidecars as if they were init containers and shares volumes between pods. Each container
becomes a `podman run` here. The order of start, probes and the balancing of Services are the kubelet's, and not tested.
"""
import pytest

from tests.containers.pods import CONFINED
from tests.deploy import chart
from tests.support.grpc_process import health
from tests.support.processes import eventually

SERVERS = 2
SUBNET = "10.209.77"
SETTINGS = ("summation.cpu=1", "summation.memory=512Mi", "summation.memoryHeadroom=128Mi", "logFormat=text", f"summation.replicas={SERVERS}")
HEALTH_PORTS = {"scheduler": 7081, "summation": 7181, "agent-0": 7281, "agent-1": 7381}


def ready(address, port):
    """The check of the chart's readiness probes."""
    return health(f"{address}:{port}", "readiness") == "SERVING"


class Release:
    """The chart as installed: every pod has an address of its own, which stands in for status.podIP."""
    NETWORK = "release"

    def __init__(self, podman, images, folder):
        self.podman, self.images, self.folder = podman, images, folder
        self.objects = chart.render(None, *SETTINGS)
        self.addresses = {}
        podman("network", "create", f"--subnet={SUBNET}.0/24", self.NETWORK)

    def start_services(self):
        service = chart.find(self.objects, "Service", "scheduler")["metadata"]
        self._pod("scheduler", self.pod_of("scheduler"), f"{service['name']}.{service['namespace']}.svc")
        for index in range(chart.find(self.objects, "Deployment", "summation")["spec"]["replicas"]):
            self._pod(f"summation-{index}", self.pod_of("summation"))

    def start_test(self):
        self._pod("test", chart.find(self.objects, "Pod", "test")["spec"])

    def pod_of(self, deployment):
        return chart.find(self.objects, "Deployment", deployment)["spec"]["template"]["spec"]

    def _pod(self, pod, spec, *names):
        """The same network for all containers, sidecars first."""
        self.addresses[pod] = f"{SUBNET}.{10 + len(self.addresses)}"
        self.podman("pod", "create", f"--name={pod}", f"--network={self.NETWORK}", f"--ip={self.addresses[pod]}", "--share=net",
                    *(f"--network-alias={name}" for name in names))
        for container in chart.containers(spec):
            name = self.name(pod, container["name"])
            image = container["image"].rsplit("/addend-", 1)[1].split(":")[0]
            self.podman("run", "--detach", f"--name={name}", f"--pod={pod}", *self._confinement(spec, container),
                        *self._environment(pod, container), *self._volumes(pod, spec, container), *self._entrypoint(container),
                        self.images[image], *container.get("command", [])[1:], *container.get("args", []))
            if container["name"] in HEALTH_PORTS:
                self.await_ready(pod, container["name"])

    @staticmethod
    def name(pod, container):
        return f"{pod}.{container}"

    def await_ready(self, pod, container):
        eventually(lambda: ready(self.addresses[pod], HEALTH_PORTS[container]), 60,
                   f"{container} to be ready; its log:\n{self.log(self.name(pod, container))}")

    @staticmethod
    def _confinement(spec, container):
        """The security context must equal the options in CONFINED."""
        own, pod = container["securityContext"], spec["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]} and own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
        user = f"{own.get('runAsUser', pod['runAsUser'])}:{pod['runAsGroup']}"
        assert user == "65532:65532"
        return [*CONFINED, f"--user={user}", f"--memory={chart.bytes_of(container['resources']['limits']['memory'])}"]

    def _environment(self, pod, container):
        fields = {"status.podIP": self.addresses[pod], "metadata.uid": "4711"}
        values = {}
        for name, value in chart.environment(container).items():
            values[name] = value if isinstance(value, str) else fields[value["fieldRef"]["fieldPath"]]
            for other in list(values):  # of those before it
                values[name] = values[name].replace(f"$({other})", values[other])
        return [f"--env={name}={value}" for name, value in values.items()]

    def _volumes(self, pod, spec, container):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        flags = []
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            source = self._config_map(volume["configMap"]["name"]) if "configMap" in volume else f"{pod}-{mount['name']}"
            flags.append(f"--volume={source}:{mount['mountPath']}" + (":ro" if mount.get("readOnly") else ""))
        return flags

    def _config_map(self, name):
        folder = self.folder / name
        folder.mkdir(mode=0o755, exist_ok=True)
        config = next(o for o in self.objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == name)
        for file, text in config["data"].items():
            (folder / file).write_text(text)
        return folder

    @staticmethod
    def _entrypoint(container):
        return [f"--entrypoint={container['command'][0]}"] if "command" in container else []

    def log(self, name):
        done = self.podman.run("logs", name)
        return done.stdout + done.stderr


@pytest.fixture(name="release", scope="module")
def _release(podman, images, tmp_path_factory):
    try:
        chart.install()
    except chart.Unavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("chart")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)  # the containers' user reads the ConfigMap
    release = Release(podman, images, folder)
    try:
        release.start_services()
        yield release
    finally:
        podman.remove_all()


def test_the_pod_of_helm_test_finds_the_installed_release_sound(release):
    release.start_test()
    status = int(release.podman("wait", "test.check", timeout=300))
    log = release.log("test.check")
    assert status == 0, log
    summary = next(line for line in log.splitlines() if line.startswith("2 nodes, "))
    assert "bit for bit as NumPy sums" in summary and f"{SERVERS} CPU servers summed " in summary


def test_a_server_that_is_told_to_go_ends_within_its_grace_period(release):
    grace = release.pod_of("summation")["terminationGracePeriodSeconds"]
    release.podman("stop", f"--time={grace}", "summation-0.summation")
    assert release.podman.inspect("summation-0.summation")["State"]["ExitCode"] == 0


def test_a_scheduler_that_is_restarted_finds_its_store_on_the_volume(release):
    release.podman("stop", "--time=10", "scheduler.scheduler")
    release.podman("start", "scheduler.scheduler")
    release.await_ready("scheduler", "scheduler")
    status = release.podman("run", "--rm", "--pod=scheduler", *CONFINED, release.images["tools"], "addendctl", "status", "--json")
    assert '"sqlite:/var/lib/addend/scheduler.db"' in status
