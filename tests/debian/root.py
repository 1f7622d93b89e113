"""Root file systems of other Debian releases, with packages of theirs; and a python3 that runs in such a root.

They are made from the mirror that this machine's packages come from, once, and kept below build/debian.
"""
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "debian"
_PYTORCH = ["python3-torch", "python3-pytest", "python3-sklearn", "libhwy1t64"]
PACKAGES = {
    "bullseye": ["python3-numpy", "python3-pip"],  # glibc 2.31
    "trixie": _PYTORCH,
    "trixie-minimal": ["ca-certificates"],  # as a new installation
    "trixie-cosign": ["cosign"],  # Debian 12 has none
    "sid-policies": ["golang-go", "golang-k8s-apiserver-dev"],  # Kubernetes' own compiler of admission policies
    "forky": [*_PYTORCH, "python3-accelerate", "python3-transformers"],
}
PYTORCH = {"trixie": "2.6", "forky": "2.14"}  # of each suite
SCRIPTS = pathlib.Path("/usr/share/debootstrap/scripts")
LONGEST_S = 1200  # for a command, or the making of a root

# Mounts folders of this machine at the same places below $root; the processes have mounts of their own.
MOUNT = 'for folder in {folders}; do mkdir -p "$root$folder" && mount --rbind "$folder" "$root$folder" || exit 71; done'
# The other system sees the machine's devices, the checkout and the temporary files where they are. It stays a single process, so that
# signals reach it. Its PyTorch is built without libuv.
WRAPPER = f"""#!/bin/bash
export USE_LIBUV=0
exec unshare --mount --propagation private bash -c '
  root=$1; shift
  {MOUNT}
  exec chroot "$root" /bin/sh -c "cd \\"\\$1\\" && shift && exec python3 \\"\\$@\\"" sh "$PWD" "$@"' python3 {{root}} "$@"
"""


@functools.cache
def mirror():
    """Where this machine gets Debian's packages from; empty if it does not say."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True)
    found = [line for line in listed.stdout.splitlines() if "/debian/" in line and "security" not in line]
    return found[0] if found else ""


def unavailable():
    """Why no root can be made on this machine; empty if one can."""
    if shutil.which("debootstrap") is None:
        return "debootstrap is not installed (package debootstrap)"
    if os.geteuid() != 0:
        return "only root makes and enters another root file system"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        return "a process on this machine may not have mounts of its own (unshare --mount)"
    return "" if mirror() else "apt knows no mirror of Debian's"


def command(name, folder):
    suite = name.split("-")[0]
    known = SCRIPTS / suite
    return ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES[name])}", suite, str(folder), mirror(), str(known if known.exists() else SCRIPTS / "sid")]


def root_of(name):
    """Its folder, of a root in PACKAGES. Makes it where it is missing; RuntimeError says why that failed."""
    key = hashlib.sha256(" ".join([name, *PACKAGES[name]]).encode()).hexdigest()[:12]
    kept = KEPT / f"{name}-{key}"
    if kept.exists():
        return kept
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=KEPT) as folder:
        made = pathlib.Path(folder) / "root"
        log = KEPT / f"{name}.log"
        with log.open("w") as output:
            done = subprocess.run(command(name, made), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=LONGEST_S)
        if done.returncode != 0:
            raise RuntimeError(f"debootstrap of {name} ended with status {done.returncode}:\n{log.read_text()[-2000:]}")
        shutil.rmtree(made / "var/cache/apt", ignore_errors=True)
        for old in KEPT.glob(f"{name}-{'[0-9a-f]' * len(key)}"):
            shutil.rmtree(old)
        made.rename(kept)
    return kept


def run_in(name, command, timeout=LONGEST_S, **variables):
    """The output of a command that succeeds in the root, in the checkout, with these environment variables alone."""
    script = MOUNT.format(folders=f"/proc /dev {ROOT}")
    inside = ["env", "-i", "PATH=/usr/bin:/bin", *(f"{key}={value}" for key, value in variables.items()), *map(str, command)]
    done = subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-c",
                           f'root=$1; shift\n{script}\nexec chroot "$root" sh -c \'cd "$0" && exec "$@"\' "$@"',
                           "bash", root_of(name), ROOT, *inside],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} in {name} ended with status {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def python_of(suite, folder):
    """A program in `folder` that stands in for python3 and is that of the suite."""
    folders = ["/proc", "/dev", tempfile.gettempdir(), str(ROOT)]
    program = folder / f"python3-of-{suite}"
    program.write_text(WRAPPER.format(folders=" ".join(folders), root=root_of(suite)))
    program.chmod(0o755)
    return program


def skip_if_unavailable():
    """Skips the test on a machine that can make no root: without debootstrap, mounts of its own, or the mirror."""
    if reason := unavailable():
        pytest.skip(reason)


def root_or_skip(name):
    """As root_of(). Skips the test where the root cannot be made."""
    skip_if_unavailable()
    try:
        return root_of(name)
    except (RuntimeError, subprocess.TimeoutExpired) as why:
        pytest.skip(f"no root file system of {name} can be made here: {str(why)[:300]}")


def python_or_skip(suite, folder):
    """As python_of(). Skips the test where the root cannot be made."""
    root_or_skip(suite)
    return python_of(suite, folder)


def run(command, **variables):
    """The output of a command that succeeds, in the checkout."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, timeout=LONGEST_S, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "PYTHONPATH": f"{ROOT}/python:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1", **variables})
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout
