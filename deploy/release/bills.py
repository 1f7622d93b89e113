"""The bills of materials of a release's artifacts: images, chart and wheel."""
import hashlib
import re
import subprocess
import urllib.parse
import zipfile

from deploy.release import debian
from deploy.release.spdx import HOME, Document, element

OURS = "Apache-2.0"
_BINARY = re.compile(r"usr/bin/addend[\w-]*|usr/lib/python3/dist-packages/addend/lib\w+\.so")
_PYTHON = "usr/lib/python3/dist-packages/addend/__init__.py"
_NOTICES = "addend/bin/lib/licenses/"  # python/bundle.py puts the notice of each bundled package there


def is_needed(path):
    """Whether image() needs a file of an image."""
    return debian.is_record(path) or bool(_BINARY.fullmatch(path)) or path == _PYTHON


def oci_purl(repository, digest, tag=None):
    qualifiers = f"?repository_url={repository}" + (f"&tag={tag}" if tag else "")
    return f"pkg:oci/{repository.rsplit('/', 1)[-1]}@{urllib.parse.quote(digest, safe='')}{qualifiers}"


def _container(repository, tag, digest, supplier, licence="NOASSERTION"):
    return element(repository, tag, supplier, licence, oci_purl(repository, digest, tag), digest, primaryPackagePurpose="CONTAINER")


def _own(name, version, revision, **more):
    address = f"pkg:generic/addend/{name}@{version}?vcs_url={urllib.parse.quote(f'git+{HOME}@{revision}', safe='')}"
    return element(name, version, "Addend", OURS, address, **more)


def base_element(base_image):
    name, digest = base_image
    repository, _, tag = name.partition("@")[0].rpartition(":") if ":" in name.rsplit("/", 1)[-1] else (name.partition("@")[0], "", "")
    return _container(repository, tag or "unknown", digest, None)


def image(name, registry, version, revision, digest, root, base_image, epoch):
    """Of an image. `root`: its files and links, as Layout.files() returns them."""
    files, links = root
    document = Document(f"{name}-{version}", _container(f"{registry}/{name}", version, digest, "Addend", OURS), epoch)
    for path, data in sorted(files.items()):
        if _BINARY.fullmatch(path):
            purpose = "LIBRARY" if path.endswith(".so") else "APPLICATION"
            document.relate("CONTAINS", _own(path.rsplit("/", 1)[1], version, revision, sha256=hashlib.sha256(data).hexdigest(),
                                             packageFileName=f"/{path}", primaryPackagePurpose=purpose))
    if _PYTHON in files:
        document.relate("CONTAINS", _own("addend-python", version, revision, packageFileName=f"/{_PYTHON.rsplit('/', 1)[0]}",
                                         primaryPackagePurpose="LIBRARY"))
    release = debian.distribution(files)
    for package in debian.packages(files, links):
        document.relate("CONTAINS", document.debian_package(package, release))
    whole = "var/lib/dpkg/status" in files  # only an image on a whole Debian has it
    document.relate(*(("DESCENDANT_OF", base_element(base_image)) if whole else ("BUILD_DEPENDENCY_OF", base_element(base_image), True)))
    return document.json()


def chart(archive, name, registry, version, digests, epoch):
    """Of the chart: the images that it starts. `archive`: the bytes of its package; `digests`: {name of the image: digest}."""
    described = element("addend", version, "Addend", OURS, f"pkg:helm/addend@{version}?repository_url=oci://{registry}/charts",
                        hashlib.sha256(archive).hexdigest(), packageFileName=name, primaryPackagePurpose="APPLICATION")
    document = Document(f"addend-chart-{version}", described, epoch)
    for image_name, digest in digests.items():
        document.relate("DEPENDS_ON", _container(f"{registry}/{image_name}", version, digest, "Addend", OURS))
    return document.json()


def wheel(path, version, revision, epoch):
    """Of the wheel: the Debian packages of the libraries in it. It has their notices; their versions are those of this machine,
    where it was made."""
    with zipfile.ZipFile(path) as archive:
        notices = {name.partition(_NOTICES)[2]: archive.read(name) for name in archive.namelist() if _NOTICES in name}
    described = _own("addend", version, revision, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), packageFileName=path.name,
                     primaryPackagePurpose="LIBRARY")
    document = Document(f"addend-wheel-{version}", described, epoch)
    if notices:
        records = subprocess.run(["dpkg-query", "-s", *sorted(notices)], capture_output=True, check=True).stdout
        with open("/etc/os-release", "rb") as file:
            files = {"etc/os-release": file.read(), "var/lib/dpkg/status": records}
        files |= {f"usr/share/doc/{package}/copyright": notice for package, notice in notices.items()}
        for package in debian.packages(files, {}):
            document.relate("CONTAINS", document.debian_package(package, debian.distribution(files)))
    return document.json()
