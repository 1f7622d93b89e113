"""The contents of the images, and the absence of others."""
import io
import json
import re
import stat
import subprocess
import tarfile
import types

import pytest

from tests.support.cluster import ROOT
from tests.support.podman import BASE_IMAGE
from tests.containers.pods import CONFINED

SERVICES = ("scheduler", "summation", "agent")
PORTS = {"scheduler": {7070, 7080, 7081}, "summation": {7170, 7171, 7180, 7181}, "agent": {7270, 7271, 7280, 7281}}
WRITABLE = {"scheduler": {"var/lib/addend"}, "summation": set(), "agent": {"run/addend"}}
# Their present sizes, and a third more; CI must notice a library that adds half of Debian.
LARGEST_MB = {"scheduler": 42, "summation": 56, "agent": 57, "tools": 340}  # libIPSec_MB has 13


def commit(what):
    return subprocess.run(["git", "log", "-1", f"--format={what}"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def version():
    return re.search(r"project\(addend VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def files_of(podman, image):
    """{path: tarfile.TarInfo} and a reader of an image's files."""
    container = podman("create", "--network=none", image)
    try:
        done = subprocess.run(["podman", "export", container], env=podman.environment, check=True, capture_output=True)
    finally:
        podman("rm", container)
    tar = tarfile.open(fileobj=io.BytesIO(done.stdout))
    return types.SimpleNamespace(all={member.name.rstrip("/"): member for member in tar}, read=lambda path: tar.extractfile(path).read().decode())


@pytest.fixture(scope="module")
def contents(podman, images):
    return {name: files_of(podman, images[name]) for name in SERVICES}


def run_alone(podman, image, *arguments, options=()):
    return podman.run("run", "--rm", "--network=none", *CONFINED, *options, image, *arguments)


@pytest.mark.parametrize("service", SERVICES)
def test_every_library_that_a_service_or_an_rdma_driver_loads_is_in_its_image(podman, images, contents, service):
    drivers = [f"/{path}" for path in contents[service].all if path.endswith("-rdmav34.so")]
    assert bool(drivers) == (service != "scheduler")
    root = podman("image", "mount", images[service])
    try:
        for file in [f"/usr/bin/addend-{service}", *drivers]:
            done = subprocess.run(["chroot", root, "/usr/lib/ld.so", "--list", file], capture_output=True, text=True, check=False)
            assert done.returncode == 0 and "not found" not in done.stdout, f"{file}: {done.stdout}{done.stderr}"
    finally:
        podman("image", "unmount", images[service])


def test_every_package_in_the_images_is_needed(podman, images, contents):
    release = re.search(r"debian:(\w+)", BASE_IMAGE)[1]
    lines = [line.split() for line in (ROOT / "scripts" / "packages.txt").read_text().splitlines()]
    listed = {line[1] for line in lines if line[:1] == ["image"] and line[2:] in ([], [release])}
    used = {path.rsplit("/", 1)[1] for image in contents.values() for path in image.all if "/status.d/" in path}
    loaded = "ldd /usr/bin/addendctl /usr/bin/addend-bench | awk '$3 ~ /^\\// { print $3 }' | xargs realpath | xargs dpkg-query -S"
    used |= {line.split(":")[0] for line in run_alone(podman, images["tools"], "sh", "-c", loaded).stdout.splitlines()}
    assert listed <= used, f"nothing loads anything of {sorted(listed - used)}: remove them from the group 'image' of scripts/packages.txt"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_one_program_and_no_shell(contents, service):
    files = {path: member for path, member in contents[service].all.items() if member.isfile()}
    programs = {path for path, member in files.items() if member.mode & 0o111 and not re.search(r"\.so(\.|$)", path)}
    assert programs == {f"usr/bin/addend-{service}"}
    assert not [path for path, member in files.items() if member.mode & (stat.S_ISUID | stat.S_ISGID)]


@pytest.mark.parametrize("service", SERVICES)
def test_only_folders_for_volumes_belong_to_the_services_user(contents, service):
    files = contents[service].all
    assert {path for path, member in files.items() if member.uid == 65532} == WRITABLE[service]
    assert not [path for path, member in files.items() if member.mode & 0o002 and not member.issym()]


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_carries_the_version_and_the_licence_of_every_package(contents, service):
    image = contents[service]
    packages = [path.rsplit("/", 1)[1] for path in image.all if "/status.d/" in path]
    assert {"libc6", "libgrpc++1.51"} <= set(packages)
    for package in packages:
        assert re.search(r"^Version: \d", image.read(f"var/lib/dpkg/status.d/{package}"), re.M), package
        assert f"usr/share/doc/{package}/copyright" in image.all
    assert "ID=debian" in image.read("etc/os-release")
    assert "Apache License" in image.read("usr/share/doc/addend/copyright")


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_declares_its_user_program_and_ports(podman, images, service):
    config = podman.inspect(images[service])["Config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == [f"/usr/bin/addend-{service}"]
    assert {int(port.split("/")[0]) for port in config["ExposedPorts"]} == PORTS[service]
    assert config["StopSignal"] in ("15", "SIGTERM")


@pytest.mark.parametrize("name", [*SERVICES, "tools"])
def test_an_image_is_labelled_with_its_version_and_revision(podman, images, name):
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in podman.inspect(images[name])["Config"]["Labels"].items()}
    assert labels["title"] == f"addend-{name}"
    assert labels["version"] == version()
    assert labels["revision"].removesuffix("-dirty") == commit("%H")
    assert labels["licenses"] == "Apache-2.0"


@pytest.mark.parametrize("name", [*SERVICES, "tools"])
def test_an_image_is_small(podman, images, name):
    assert podman.inspect(images[name])["Size"] / 1e6 < LARGEST_MB[name]


@pytest.mark.parametrize("service", SERVICES)
def test_every_file_has_the_time_of_the_commit(contents, service):
    mounted_over = {"dev", "proc", "sys", "etc", "run", "dev/console", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab", "run/.containerenv"}
    others = {path: member.mtime for path, member in contents[service].all.items()
              if path not in mounted_over and member.mtime != int(commit("%ct"))}
    assert not others


def test_the_same_input_makes_the_same_layers(podman, build, images):
    build("again", "--prebuilt", "agent", engine=["--no-cache"])
    assert podman.inspect("localhost/addend-agent:again")["RootFS"] == podman.inspect(images["agent"])["RootFS"]


@pytest.mark.parametrize("name,arguments,status,says", [
    ("agent", [], 64, "--job is missing"),
    ("agent", ["--job=train", "--num-nodes=2", "--node-rank=7"], 64, "--node-rank"),
    ("agent", ["--job=train", "--insecure"], 64, "--socket=/run/addend/agent.sock: Read-only file system"),
    ("scheduler", ["--insecure"], 77, "/var/lib/addend/scheduler.db"),
    ("summation", ["--insecure", "--scheduler=127.0.0.1:9", "--connect-timeout=1s"], 76, "127.0.0.1:9"),
], ids=["without a job", "no such node", "no volume for the socket", "no volume for the store", "no scheduler"])
def test_a_container_that_cannot_start_reports_the_reason_and_its_status(podman, images, name, arguments, status, says):
    done = run_alone(podman, images[name], *arguments)
    assert done.returncode == status, done.stderr
    assert says in done.stderr.strip().splitlines()[-1]


def test_tools_have_addendctl_and_the_benchmark_and_the_python_package(podman, images):
    plan = run_alone(podman, images["tools"], "addendctl", "plan", "--gpu-nodes=8", "--cpu-nodes=4", "--bytes=1GB", "--bandwidth=25Gbps", "--json")
    assert plan.returncode == 0 and json.loads(plan.stdout)["n"] == 8, plan.stderr
    assert run_alone(podman, images["tools"], "addend-bench", "--help").returncode == 0
    python = run_alone(podman, images["tools"], "python3", "-c", "import numpy, addend; print(addend.__version__)")
    assert python.stdout.strip() == version(), python.stderr


def test_the_agent_runs_beside_the_libraries_of_another_image(podman, build):
    """Instead of a CUDA image, which is not available here, plain Debian shows that the agent brings its own libraries: it has none of them."""
    build("test", "--prebuilt", f"--cuda-base-image={BASE_IMAGE}", "agent-cuda")
    image = "localhost/addend-agent-cuda:test"
    assert run_alone(podman, image, "--version").stdout.startswith("addend-agent ")
    listed = run_alone(podman, image, "--library-path", "/opt/addend/usr/lib", "--list", "/opt/addend/usr/bin/addend-agent",
                       options=("--entrypoint=/opt/addend/usr/lib/ld.so",)).stdout
    libraries = re.findall(r"=> (/\S+)", listed)
    assert len(libraries) > 20
    assert not [path for path in libraries if not path.startswith(("/opt/addend/", "/lib64/ld-"))]
