"""A checkout as a maintainer releases it: the files of this checkout in a repository of their own, clean, and with the tag of the version."""
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r"project\(addend VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
TAG = f"v{VERSION}"
_TIME = "2026-01-02T03:04:05Z"  # of the commit: equal checkouts have equal revisions


def git(folder, *words):
    """The output of git in a folder, by an author and at a time that never change."""
    fields = {"NAME": "A", "EMAIL": "a@example.org", "DATE": _TIME}
    named = {f"GIT_{role}_{field}": value for role in ("AUTHOR", "COMMITTER") for field, value in fields.items()}
    return subprocess.run(["git", *words], cwd=folder, env={**os.environ, **named}, check=True, capture_output=True, text=True).stdout


def checkout(folder):
    """Fills a folder with the files that git knows or would add, without binaries."""
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    log = folder / "CHANGELOG.md"
    log.write_text(log.read_text().replace(f"## {VERSION} (not released)", f"## {VERSION} (2026-01-02)"))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", f"release: {VERSION}")
    git(folder, "tag", TAG)
    return folder


def add_binaries(folder):
    """Adds the products of this checkout's build, which are not of the repository, for --prebuilt."""
    for name in ("bin", "lib"):
        shutil.copytree(ROOT / "build" / name, folder / "build" / name, ignore=shutil.ignore_patterns("*.a"))


def make_keys(folder):
    """(private key, public key) on the curve of cosign's keys."""
    private, public = folder / "release.key", folder / "release.pub"
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private], check=True, capture_output=True)
    subprocess.run(["openssl", "ec", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    return private, public


def verify(public, folder, *options):
    """The result of scripts/verify-release."""
    return subprocess.run([ROOT / "scripts" / "verify-release", f"--key={public}", *options, folder], capture_output=True, text=True, check=False)
