"""Containers for the tests: a podman whose images, containers, networks and volumes are separate from all others.

    with Podman(folder) as podman:
        podman.ensure_base_image()
        podman("run", "--rm", BASE_IMAGE, "true")

All data is below `folder`. Started containers are removed at the end, even after a failure; images stay for the next run.
"""
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
_PROGRAMS = {"podman": "podman", "runc": "runc", "debootstrap": "debootstrap", "iptables": "iptables", "/usr/lib/podman/netavark": "netavark",
             "/usr/lib/podman/aardvark-dns": "aardvark-dns", "catatonit": "catatonit"}
_SOURCES = (pathlib.Path("/etc/apt/sources.list.d/debian.sources"), pathlib.Path("/etc/apt/sources.list"))


def unavailable():
    """The reason why this machine cannot run containers; empty if it can."""
    if os.geteuid() != 0:
        return "containers of the tests need root"
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)} (packages of these names)" if missing else ""


def debian_mirror():
    """The first archive in this machine's apt sources."""
    for path in _SOURCES:
        found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?) *(http\S+)", path.read_text(), re.M) if path.exists() else None
        if found:
            return found[1]
    return "http://deb.debian.org/debian"


class Podman:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        # The folder holds sockets: a Unix socket's path has at most 107 bytes, of which podman uses 80.
        self._run = pathlib.Path("/run") / ("addend-" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:8])
        self.environment = {**os.environ, "CONTAINERS_CONF": str(self.folder / "containers.conf"),
                            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf")}

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run.mkdir(exist_ok=True)
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/storage"\nrunroot = "{self._run}/storage"\n')
        # Root may lack the right to raise limits, which podman would do by default; runc supports control groups of both versions side by
        # side; and there may be no systemd.
        limits = {name: min(resource.getrlimit(what)[1] % 2**64, 2**15) for name, what in
                  (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))}
        (self.folder / "containers.conf").write_text(f"""\
[containers]
default_ulimits = {json.dumps([f"{name}={limit}:{limit}" for name, limit in limits.items()])}
[network]
network_backend = "netavark"
network_config_dir = "{self.folder}/networks"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{self._run}/tmp"
""")
        self.remove_all()  # leftovers of a run that was killed
        return self

    def __exit__(self, *_):
        self.remove_all()

    def remove_all(self):
        """Removes all objects but the images."""
        for arguments in (("pod", "rm", "--all", "--force", "--time=0"), ("rm", "--all", "--force", "--volumes", "--time=0"),
                          ("volume", "rm", "--all", "--force"), ("network", "prune", "--force")):
            self(*arguments)

    def run(self, *arguments, timeout=120, **more):
        """Returns the completed process, whatever its status, with its output as text."""
        return subprocess.run(["podman", *map(str, arguments)], env=self.environment, capture_output=True, text=True, errors="replace",
                              timeout=timeout, check=False, **more)

    def __call__(self, *arguments, timeout=120):
        """Returns the standard output of 'podman ARGUMENTS'; fails with podman's error unless it succeeds."""
        done = self.run(*arguments, timeout=timeout)
        assert done.returncode == 0, f"podman {' '.join(map(str, arguments))}: status {done.returncode}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    def inspect(self, name):
        """podman's description of a container, a pod or an image."""
        return json.loads(self("inspect", name))[0]

    def ensure_base_image(self):
        """Makes the Debian image, by its usual name, from the archive that apt uses, without a registry."""
        if self.run("image", "exists", BASE_IMAGE).returncode == 0:
            return
        root = self.folder / "debian"
        shutil.rmtree(root, ignore_errors=True)
        made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root, debian_mirror()], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout[-3000:]
        # As in the official image: dpkg does not wait for the disk.
        (root / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
        with subprocess.Popen(["tar", "-C", root, "--numeric-owner", "--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*",
                               "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "-c", "."], stdout=subprocess.PIPE) as tar:
            imported = self.run("import", "--change", "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                "--change", 'CMD ["bash"]', "-", BASE_IMAGE, stdin=tar.stdout)
        assert (imported.returncode, tar.returncode) == (0, 0), imported.stderr
        shutil.rmtree(root)
