"""A release of small images that are made of a few files, instead of those of deploy/docker: everything of scripts/release except the builds."""
import gzip
import io
import os
import subprocess
import sys
import tarfile
import types
import zipfile

from deploy.release import layout
from tests.support.release import ROOT, VERSION

REGISTRY = "registry.example:5000/team/addend"
REVISION = "0123456789abcdef0123456789abcdef01234567"
EPOCH = 1767323045
IMAGES = ("addend-scheduler", "addend-summation", "addend-agent", "addend-tools")
BASE = ("docker.io/library/debian:bookworm-slim", "sha256:" + "ab" * 32)
FORMAT = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12"\nVERSION_ID="12"\nID=debian\n'


def record(name, version, status="install ok installed", **fields):
    more = "".join(f"{key}: {value}\n" for key, value in fields.items())
    return f"Package: {name}\nStatus: {status}\nArchitecture: amd64\nVersion: {version}\n{more}Description: a package\n of two lines\n"


ZLIB = record("zlib1g", "1:1.2.13.dfsg-1", Source="zlib")
SERVICE = {
    "etc/os-release": OS_RELEASE,
    "var/lib/dpkg/status.d/zlib1g": ZLIB,
    "usr/share/doc/zlib1g/copyright": FORMAT + "\nFiles: *\nLicense: Zlib\n\nFiles: amiga/*\nLicense: Expat or GPL-2+\n",
    "var/lib/dpkg/status.d/libgrpc++1.51": record("libgrpc++1.51", "1.51.1-3+b1", Source="grpc (1.51.1-3)"),
    "usr/share/doc/libgrpc++1.51/copyright": FORMAT + "\nFiles: *\nLicense: Apache-2.0\n\nFiles: x\nLicense: Artistic or GPL-1\n",
    "var/lib/dpkg/status.d/libc6": record("libc6", "2.36-9", Source="glibc"),
    "usr/share/doc/libc6/copyright": "This is prose.\nLicense: is not a field here.\n",
}
# As Debian has it: the folder of a package of the same source stands for the package's.
BASE_FILES = {
    "usr/lib/os-release": OS_RELEASE,
    "var/lib/dpkg/status": record("bash", "5.2") + "\n" + record("gone", "1", status="deinstall ok config-files"),
    "usr/share/doc/bash/copyright": FORMAT + "License: GPL-3+\n",
    "usr/share/doc/libz/copyright": "of the base",
    "usr/share/doc/old/copyright": "removed in the layer above",
}
TOOLS_FILES = {
    "var/lib/dpkg/status": BASE_FILES["var/lib/dpkg/status"] + "\n" + record("libz", "1", Source="zlib") + "\n" + ZLIB,
    "usr/share/doc/.wh.old": "",
    "usr/share/doc/.wh.libz": "",
    "usr/share/doc/zlib1g/copyright": FORMAT + "License: Zlib\n",
    "usr/share/doc/libz": ("zlib1g",),
    "usr/bin/addendctl": "the program addendctl",
    "usr/lib/python3/dist-packages/addend/libaddend.so": "the library",
    "usr/lib/python3/dist-packages/addend/__init__.py": "",
}


def layer(files):
    """A layer of files; a tuple is the target of a link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            if isinstance(content, tuple):
                member.type, member.linkname = tarfile.SYMTYPE, content[0]
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content.encode()))
    return layout.Content("application/vnd.oci.image.layer.v1.tar+gzip", gzip.compress(data.getvalue(), mtime=0))


def add_images(folder):
    for name in IMAGES:
        service = {**SERVICE, f"usr/bin/{name}": f"the program {name}"}
        layers = [layer(files) for files in ([BASE_FILES, TOOLS_FILES] if name == "addend-tools" else [service])]
        config = layout.Content("application/vnd.oci.image.config.v1+json", layout.compact({"os": "linux", "architecture": "amd64", "config": {}}))
        layout.Layout(folder / "oci" / name).add(VERSION, config, layers)
    with zipfile.ZipFile(folder / f"addend-{VERSION}-py3-none-any.whl", "w") as wheel:
        # Its version is that of the machine's own package.
        wheel.writestr(zipfile.ZipInfo(f"addend-{VERSION}.data/purelib/addend/bin/lib/licenses/libc6"), "prose")


def run(*words, path=None):
    """The result of a part of scripts/release; `path`: a folder of programs that stand in for others."""
    found = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
    return subprocess.run([sys.executable, "-m", "deploy.release", *map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": found})


NAMED = (f"--registry={REGISTRY}", f"--version={VERSION}")


def assemble(folder, *options, path=None):
    """Fills a folder with a release."""
    add_images(folder)
    done = run("assemble", folder, *NAMED, f"--revision={REVISION}", f"--epoch={EPOCH}", f"--base-image={BASE[0]}", f"--base-digest={BASE[1]}",
               "--builder=https://builder.example", "--tool=podman=4.3.1", *options, path=path)
    assert done.returncode == 0, done.stderr
    return types.SimpleNamespace(folder=folder, layout=lambda name: layout.Layout(folder / "oci" / name))
