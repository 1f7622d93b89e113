"""The chart as a package, and as an artifact of a registry. Its values name the images by their digests."""
import fnmatch
import gzip
import io
import pathlib
import re
import tarfile

import yaml

from deploy.helm import readme
from deploy.release import layout, spdx

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "addend"
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
# Artifact Hub's names for the description of a repository, which it looks for under the tag artifacthub.io.
HUB_TAG = "artifacthub.io"
HUB_CONFIG = "application/vnd.cncf.artifacthub.config.v1+yaml"
HUB_CONTENT = "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"
_NAMED_AS = "ghcr.io/addend/"  # the registry in the files of the repository
# An image of the values: registry, repository and digest, with comments and other values between them.
_IMAGE = re.compile(r'(^ *registry: )ghcr\.io(\n(?: *#[^\n]*\n)* *repository: )addend/([\w-]+)(\n(?:(?! *digest:)[^\n]*\n)*? *digest: )""', re.M)


def pinned(text, version, digests, registry):
    """A text of the chart in which each image is that of `registry` and has its digest. `digests`: {name of the image: digest}."""
    for name, digest in digests.items():
        text = text.replace(f"{_NAMED_AS}{name}:{version}", f"{registry}/{name}:{version}@{digest}")
    host, _, prefix = f"{registry}/".partition("/")

    def block(match):
        return f'{match[1]}{host}{match[2]}{prefix}{match[3]}{match[4]}"{digests[match[3]]}"'
    return _IMAGE.sub(block, text)


def files(version, digests, registry):
    """{path below the chart: bytes} of the files that Helm packages, and the licence."""
    ignored = [line.strip() for line in (CHART / ".helmignore").read_text().splitlines() if line.strip()]

    def is_ignored(path):
        return any(path.startswith(rule) if rule.endswith("/") else fnmatch.fnmatch(path.rsplit("/", 1)[-1], rule) for rule in ignored)
    paths = {path.relative_to(CHART).as_posix(): path for path in CHART.rglob("*") if path.is_file()}
    found = {name: path.read_bytes() for name, path in paths.items() if not is_ignored(name) and "__pycache__" not in path.parts}
    for name in ("values.yaml", "Chart.yaml"):
        found[name] = pinned(found[name].decode(), version, digests, registry).encode()
    address = f"oci://{registry}/charts/addend --version {version}"
    tree = f"{spdx.HOME}/tree/v{version}"
    found["README.md"] = readme.readme(found["values.yaml"].decode(), address, tree, f"{tree}/{CHART.relative_to(ROOT)}/ci").encode()
    found["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    return found


def package(contents, epoch):
    """The archive of Helm's format. Equal files and time are equal bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        # Helm reads Chart.yaml first.
        for name in sorted(contents, key=lambda name: (name != "Chart.yaml", name)):
            member = tarfile.TarInfo(f"addend/{name}")
            member.size, member.mtime, member.mode = len(contents[name]), epoch, 0o644
            tar.addfile(member, io.BytesIO(contents[name]))
    return gzip.compress(plain.getvalue(), mtime=epoch)


def add_to(target, contents, archive, epoch):
    """Adds the chart to a layout as 'helm push' does, and the description of the repository for Artifact Hub. Returns the chart's digest."""
    definition = yaml.safe_load(contents["Chart.yaml"])
    annotations = {"title": definition["name"], "description": definition["description"], "version": definition["version"],
                   "url": definition["home"], "source": definition["sources"][0], "authors": definition["maintainers"][0]["name"],
                   "created": spdx.time_of(epoch)}
    hub = (CHART.parent / "artifacthub-repo.yml").read_bytes()
    described = layout.Content(HUB_CONTENT, hub, {"org.opencontainers.image.title": "artifacthub-repo.yml"})
    target.add(HUB_TAG, layout.Content(HUB_CONFIG, b""), [described])
    return target.add(definition["version"], layout.Content(CONFIG, layout.compact(definition)), [layout.Content(CONTENT, archive)],
                      {f"org.opencontainers.image.{key}": value for key, value in annotations.items()})
