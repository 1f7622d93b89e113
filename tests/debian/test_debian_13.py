"""Debian 13, from a minimal system on: the build and the demo, the unit tests, and clusters."""
import os
import shutil
import subprocess

import pytest

from tests.debian import root

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * 3600)]

# Trainers of NumPy and PyTorch, ranks of several sets, a killed server, lost nodes, encryption.
CLUSTERS = ["training", "backend", "participants", "recovery", "node_loss", "tls", "async"]
ENTER = f"""
root=$1
mount --bind "$root" "$root" || exit 71  # ip netns wants / to be a mount
{root.MOUNT.format(folders="/proc /dev /sys")}
mount -t tmpfs none "$root/run" && mount -t tmpfs none "$root/tmp" || exit 71
exec chroot "$root" /bin/bash -c "cd /addend && $2"
"""


class Debian13:
    """A minimal system with a copy of the checkout in /addend. Both stay, so that a second run compiles changed files only."""

    def __init__(self):
        self.root = root.root_of("trixie-minimal")
        self._share_the_mirror()
        self._copy_the_checkout(self.root / "addend")

    def _share_the_mirror(self):
        """apt fetches packages like that of this machine."""
        options = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True).stdout
        (self.root / "etc/apt/apt.conf.d/90acquire").write_text("".join(line + "\n" for line in options.splitlines() if line.startswith("Acquire::")))
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")

    @staticmethod
    def _copy_the_checkout(copy):
        listed = subprocess.run(["git", "-C", root.ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True,
                                check=True).stdout
        files = {name for name in listed.split("\0") if name and (root.ROOT / name).is_file()}
        for path in copy.rglob("*"):
            name = str(path.relative_to(copy))
            if path.is_file() and not name.startswith("build/") and name not in files:
                path.unlink()
        for name in files:
            source, target = root.ROOT / name, copy / name
            if target.exists() and target.stat().st_mtime_ns == source.stat().st_mtime_ns:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def run(self, command, limit_s=3600):
        """The output of a shell command that succeeds in the copy."""
        kept = {name: value for name, value in os.environ.items() if name.endswith("_proxy") or name == "ADDEND_JOBS"}
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-c", ENTER, "bash", self.root, command], timeout=limit_s, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**kept, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"})
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


@pytest.fixture(scope="module")
def debian_13():
    root.skip_if_unavailable()
    system = Debian13()
    # scripts/demo then builds the tests too.
    system.run("source scripts/lib.sh && require_packages build test && configure_preset release -DADDEND_TESTS=ON")
    return system


def test_the_demo_trains(debian_13):
    said = debian_13.run("scripts/demo")
    assert "Equal: the same bits" in said, said[-3000:]


def test_unit_tests_pass(debian_13):
    said = debian_13.run("ctest --test-dir build --output-on-failure --no-tests=error -j $(nproc)")
    assert "100% tests passed" in said, said[-3000:]


def test_clusters_train_and_recover(debian_13):
    files = " ".join(f"tests/cluster/test_{name}.py" for name in CLUSTERS)
    said = debian_13.run(f"PYTHONPATH=python:. /usr/bin/python3 -m pytest -q -p no:cacheprovider -n $(($(nproc) + 1)) -m 'not timing' {files}")
    assert "passed" in said, said[-3000:]
