"""A cluster of containers as Kubernetes would run it: pods of a trainer and an agent, and services of a container each."""
import contextlib
import json

from tests.support.cluster import ROOT
from tests.support.grpc_process import health
from tests.support.podman import BASE_IMAGE
from tests.support.processes import eventually

# As in the Helm chart: no root, no capabilities, no gain from set-uid programs, writable only in volumes.
CONFINED = ("--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--read-only-tmpfs=false")
# The trainer's user is its own; the pod's fsGroup lets it use the agent's socket.
TRAINER_UID = 1000
TRAINER_USER = (f"--user={TRAINER_UID}:{TRAINER_UID}", "--group-add=65532")
MEMORY_MIB = 512  # of a service
HEALTH_PORTS = {"scheduler": 7081, "summation": 7181, "agent": 7281}
# The trainer's image is its user's. Here it is Debian with this machine's /usr, where PyTorch is installed, plus Addend's Python package and
# libaddend.so.
TRAINER_MOUNTS = ("--volume=/usr:/usr:ro", "--volume=/etc/alternatives:/etc/alternatives:ro", f"--volume={ROOT}/python:/addend/python:ro",
                  f"--volume={ROOT}/examples:/addend/examples:ro", f"--volume={(ROOT / 'build' / 'lib').resolve()}:/addend/lib:ro")


class Pods:
    NETWORK = "cluster"
    JOB = "train"

    def __init__(self, podman, images, nodes):
        self.podman, self.images, self.nodes = podman, images, nodes

    @contextlib.contextmanager
    def removed_at_the_end(self):
        """Removes all containers at the end; after a failure their logs are shown before."""
        try:
            yield
        except BaseException:
            for name in self.podman("ps", "--all", "--format={{.Names}}").split():
                print(f"---- {name}\n{self.log(name)}")
            raise
        finally:
            self.podman.remove_all()

    # ---- starting ----
    def start(self, servers):
        self.podman("network", "create", self.NETWORK)
        self.start_scheduler()
        for index in range(servers):
            self._service("summation", f"summation-{index}", "--env=ADDEND_SCHEDULER=scheduler:7070", "--env=ADDEND_SHARDS=1")
        for node in range(self.nodes):
            self._agent(node)
        # A client in the same network, with addendctl and Python.
        self.podman("run", "--detach", "--name=tools", f"--network={self.NETWORK}", *CONFINED, self.images["tools"], "sleep", "infinity")
        for name in self.services():
            eventually(lambda name=name: self.serves(name, "readiness"), 60, f"{name} to be ready; its log:\n{self.log(name)}")

    def start_scheduler(self):
        self._service("scheduler", "scheduler", "--volume=scheduler-data:/var/lib/addend")

    def services(self):
        return [name for name in self.podman("ps", "--format={{.Names}}").split() if self._kind(name) in HEALTH_PORTS]

    def _service(self, kind, name, *options):
        self.podman("run", "--detach", f"--name={name}", f"--network={self.NETWORK}", f"--memory={MEMORY_MIB}m", "--env=ADDEND_INSECURE=true", *CONFINED, *options,
                    self.images[kind])

    def _agent(self, node):
        """The pod shares its network, as in Kubernetes, and nothing else; the containers share a volume."""
        self.podman("pod", "create", f"--name=worker-{node}", f"--network={self.NETWORK}", "--share=net")
        self.podman("run", "--detach", f"--name=agent-{node}", f"--pod=worker-{node}", f"--memory={MEMORY_MIB}m", *CONFINED,
                    f"--volume=addend-run-{node}:/run/addend", "--env=ADDEND_SCHEDULER=scheduler:7070", f"--env=ADDEND_JOB={self.JOB}",
                    f"--env=ADDEND_NUM_NODES={self.nodes}", f"--env=ADDEND_NODE_RANK={node}", "--env=ADDEND_SOCKET_MODE=0660", "--env=ADDEND_INSECURE=true", self.images["agent"])

    def start_trainers(self, steps, output):
        """`output`: the folder for rank 0's files."""
        environment = {"WORLD_SIZE": self.nodes, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": self.address("agent-0"), "MASTER_PORT": 29500,
                       "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1, "ADDEND_SOCKET": "/run/addend/agent.sock",
                       "ADDEND_LIBRARY": "/addend/lib/libaddend.so", "PYTHONPATH": "/addend/python", "PYTHONDONTWRITEBYTECODE": 1}
        for node in range(self.nodes):
            ranked = {**environment, "RANK": node, "GROUP_RANK": node}
            self.podman("run", "--detach", f"--name=trainer-{node}", f"--pod=worker-{node}", "--memory=2g", *CONFINED, *TRAINER_USER, *TRAINER_MOUNTS,
                        f"--volume=addend-run-{node}:/run/addend", f"--volume={output}:/output",
                        *(f"--env={key}={value}" for key, value in ranked.items()), BASE_IMAGE, "/usr/bin/python3",
                        "/addend/examples/train_char_transformer.py", f"--steps={steps}", "--progress-file=/output/progress",
                        "--checksum-file=/output/checksum")

    # ---- asking ----
    @staticmethod
    def _kind(name):
        return name.split("-")[0]

    def address(self, name):
        """The address of a container, or of the pod that it belongs to."""
        container = self.podman.inspect(name)
        if container["Pod"]:
            container = self.podman.inspect(self.podman.inspect(container["Pod"])["InfraContainerID"])
        return container["NetworkSettings"]["Networks"][self.NETWORK]["IPAddress"]

    def pid(self, name):
        return self.podman.inspect(name)["State"]["Pid"]

    def log(self, name):
        done = self.podman.run("logs", "--tail=25", name)
        return done.stdout + done.stderr

    def serves(self, name, service):
        """The answer of grpc.health.v1 on the port of Kubernetes' probes."""
        return health(f"{self.address(name)}:{HEALTH_PORTS[self._kind(name)]}", service) == "SERVING"

    def http_status(self, url):
        """The status of a request from within the network, by the service's name."""
        code = f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=5).status)"
        return int(self.podman("exec", "tools", "python3", "-c", code))

    def status(self):
        return json.loads(self.podman("exec", "tools", "addendctl", "status", "--scheduler=scheduler:7070", "--json"))

    # ---- ending ----
    def end_status(self, name, timeout):
        """The exit status of a container that ends by itself."""
        return int(self.podman("wait", name, timeout=timeout))

    def stop(self, name, grace_s=30):
        """SIGTERM, and SIGKILL after the grace period, as Kubernetes does. The exit status."""
        self.podman("stop", f"--time={grace_s}", name)
        return self.podman.inspect(name)["State"]["ExitCode"]
