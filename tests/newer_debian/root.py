"""Root file systems of newer Debian releases, with the PyTorch that these have as a package; and a python3 that runs in one of them.

They are made from the mirror that this machine's packages come from, once, and kept below build/newer-debian.
"""
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "newer-debian"
PACKAGES = ["python3-torch", "python3-pytest", "python3-sklearn", "libhwy1t64"]
PYTORCH = {"trixie": "2.6", "forky": "2.14"}  # what each suite has
SCRIPTS = pathlib.Path("/usr/share/debootstrap/scripts")
LONGEST_S = 1200

# The other system sees the machine's devices, the checkout and the temporary files where they are. One process from beginning to end, so that
# signals reach what they are meant for. Its PyTorch is built without libuv.
WRAPPER = """#!/bin/bash
export USE_LIBUV=0
exec unshare --mount --propagation private bash -c '
  root=$1; shift
  for folder in {folders}; do
    mkdir -p "$root$folder" && mount --rbind "$folder" "$root$folder" || exit 71
  done
  exec chroot "$root" /bin/sh -c "cd \\"\\$1\\" && shift && exec python3 \\"\\$@\\"" sh "$PWD" "$@"' python3 {root} "$@"
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


def command(suite, folder):
    known = SCRIPTS / suite
    return ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(folder), mirror(), str(known if known.exists() else SCRIPTS / "sid")]


def root_of(suite):
    """Its folder. Makes it where it is missing; RuntimeError says why that failed."""
    key = hashlib.sha256(" ".join([suite, *PACKAGES]).encode()).hexdigest()[:12]
    kept = KEPT / f"{suite}-{key}"
    if kept.exists():
        return kept
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{suite}.", dir=KEPT) as folder:
        made = pathlib.Path(folder) / "root"
        log = KEPT / f"{suite}.log"
        with log.open("w") as output:
            done = subprocess.run(command(suite, made), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=LONGEST_S)
        if done.returncode != 0:
            raise RuntimeError(f"debootstrap of {suite} ended with status {done.returncode}:\n{log.read_text()[-2000:]}")
        shutil.rmtree(made / "var/cache/apt", ignore_errors=True)
        for old in KEPT.glob(f"{suite}-*"):
            shutil.rmtree(old)
        made.rename(kept)
    return kept


def python_of(suite, folder):
    """A program in `folder` that stands in for python3 and is that of the suite."""
    folders = ["/proc", "/dev", tempfile.gettempdir(), str(ROOT)]
    program = folder / f"python3-of-{suite}"
    program.write_text(WRAPPER.format(folders=" ".join(folders), root=root_of(suite)))
    program.chmod(0o755)
    return program
