"""The parts of scripts/release that handle bytes; it calls them one after the other.

    python3 -m deploy.release key FILE              refuses a key that cannot sign
    python3 -m deploy.release check ...             refuses a version that the registry has
    python3 -m deploy.release assemble FOLDER ...   adds chart, bills of materials, provenance, signatures and checksums to the images in FOLDER/oci
    python3 -m deploy.release push FOLDER ...       pushes FOLDER/oci
"""
import argparse
import hashlib
import json
import pathlib
import re
import sys

from deploy.release import bills, helm_chart, keyless, provenance, registry, signing
from deploy.release.layout import Layout, digest_of

IMAGES = ("addend-scheduler", "addend-summation", "addend-agent", "addend-tools")
CHART = "charts/addend"


class Release:
    """A release in a folder: files to download, and a layout below `oci` for each repository of the registry."""

    def __init__(self, arguments):
        self.folder = pathlib.Path(arguments.folder)
        self.version, self.registry = arguments.version, arguments.registry
        self.images = {name: self.layout(name) for name in IMAGES}

    def layout(self, repository):
        return Layout(self.folder / "oci" / repository)

    def digests(self):
        """{name of an image: its digest}."""
        return {name: layout.tags()[self.version] for name, layout in self.images.items()}

    def bill_of(self, repository):
        """The file with the bill of materials of an image or of the chart."""
        return self.folder / f"{'addend-chart' if repository == CHART else repository}-{self.version}.spdx.json"

    def write(self, name, data):
        (self.folder / name).write_bytes(data)
        return data

    def write_json(self, name, value):
        return self.write(name, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")


def assemble(arguments):
    release = Release(arguments)
    version, revision, epoch = arguments.version, arguments.revision, arguments.epoch
    signer = signing.Key(arguments.key) if arguments.key else None
    for layout in release.images.values():
        layout.normalize()
    digests = release.digests()
    base_image = (arguments.base_image, arguments.base_digest)

    contents = helm_chart.files(version, digests, release.registry)
    archive_name = f"addend-{version}.tgz"
    archive = release.write(archive_name, helm_chart.package(contents, epoch))
    chart_layout = release.layout(CHART)
    chart_digest = helm_chart.add_to(chart_layout, contents, archive, epoch)

    documents = {name: release.write_json(release.bill_of(name).name, bills.image(
        name, release.registry, version, revision, digest, release.images[name].files(version, bills.is_needed), base_image, epoch))
        for name, digest in digests.items()}
    documents[CHART] = release.write_json(release.bill_of(CHART).name,
                                          bills.chart(archive, archive_name, release.registry, version, digests, epoch))
    wheels = sorted(release.folder.glob("*.whl"))
    for wheel in wheels:
        release.write_json(f"addend-wheel-{version}.spdx.json", bills.wheel(wheel, version, revision, epoch))

    subjects = {f"{release.registry}/{name}": digest for name, digest in {**digests, CHART: chart_digest}.items()}
    subjects |= {path.name: digest_of(path.read_bytes()) for path in [release.folder / archive_name, *wheels]}
    origin = provenance.of_origin(subjects, version, revision, base_image, {"registry": release.registry, "prebuilt": arguments.prebuilt},
                                  arguments.builder, dict(tool.split("=", 1) for tool in arguments.tool))
    release.write_json(f"addend-{version}.provenance.json", origin)

    listed = []
    for repository, layout in {**release.images, CHART: chart_layout}.items():
        reference = f"{release.registry}/{repository}"
        digest = layout.tags()[version]
        sbom = signing.attach_sbom(layout, digest, documents[repository])
        listed += [f"{reference}:{version} {digest}", f"{reference}:{signing.attached(digest, 'sbom')} {sbom}"]
        if signer:
            signing.attest(signer, layout, digest, [provenance.of_materials(reference, digest, json.loads(documents[repository])), origin])
            for signed in (digest, sbom):
                signing.sign_manifest(signer, layout, reference, signed)
    release.write("digests.txt", "".join(f"{line}\n" for line in listed).encode())
    release.write("notes.md", notes(version, listed).encode())
    _finish(release, signer)
    if arguments.keyless:
        keyless.sign_files(release.folder)


def notes(version, listed):
    """The text of the release: its section of the change log, and the digests."""
    section = re.search(rf"^## {re.escape(version)}[^\n]*\n(.*?)(?=^## |\Z)", (helm_chart.ROOT / "CHANGELOG.md").read_text(), re.M | re.S)
    rows = [line.split(" ") for line in listed if ".sbom " not in line]
    table = ["| image or chart | digest |", "|---|---|", *(f"| `{name}` | `{digest}` |" for name, digest in rows)]
    return f"{section[1].strip()}\n\n## Digests\n\n" + "\n".join(table) + "\n"


def _finish(release, signer):
    """Checksums of all files to download, and a signature of each."""
    names = sorted(path.name for path in release.folder.iterdir() if path.is_file())
    release.write("SHA256SUMS", "".join(f"{hashlib.sha256((release.folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names).encode())
    for name in [*names, "SHA256SUMS"] if signer else []:
        release.write(f"{name}.sig", signer.sign((release.folder / name).read_bytes()).encode() + b"\n")


def key(arguments):
    """Refuses a key that cannot sign before anything is built."""
    signing.Key(arguments.file)


def check(arguments):
    registry.Registry(arguments.registry, arguments.plain_http).refuse_published(CHART, arguments.version)


def push(arguments):
    """The chart comes last: an interrupted push leaves no chart whose images are missing, and can be repeated."""
    release = Release(arguments)
    target = registry.Registry(arguments.registry, arguments.plain_http)
    target.refuse_published(CHART, release.version)
    layouts = {**release.images, CHART: release.layout(CHART)}
    for repository, layout in layouts.items():
        target.refuse_others(repository, release.version, layout.tags()[release.version])
    for repository, layout in layouts.items():
        for tag in sorted(layout.tags(), key=lambda tag: tag == release.version):
            target.push(repository, layout, tag)
            print(f"pushed {arguments.registry}/{repository}:{tag}")
    if arguments.keyless:
        named = [(repository, tag, digest) for repository, layout in layouts.items() for tag, digest in layout.tags().items()]
        documents = {f"{arguments.registry}/{repository}@{digest}": release.bill_of(repository)
                     for repository, tag, digest in named if tag == release.version}
        attached = [f"{arguments.registry}/{repository}@{digest}" for repository, tag, digest in named if tag.endswith(".sbom")]
        keyless.sign_manifests(documents, attached, (release.folder / f"addend-{release.version}.provenance.json").read_bytes())


def main():
    parser = argparse.ArgumentParser(prog="release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("key")
    command.set_defaults(run=key)
    command.add_argument("file")
    for function in (check, assemble, push):
        command = commands.add_parser(function.__name__)
        command.set_defaults(run=function)
        command.add_argument("--registry", required=True, help="host and folder, such as ghcr.io/addend")
        command.add_argument("--version", required=True)
        command.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
        if function is not check:
            command.add_argument("folder")
            command.add_argument("--keyless", action="store_true", help="let cosign sign")
        if function is assemble:
            command.add_argument("--revision", required=True, help="commit of the sources")
            command.add_argument("--epoch", required=True, type=int, help="time of all files, in seconds")
            command.add_argument("--base-image", required=True)
            command.add_argument("--base-digest", required=True)
            command.add_argument("--builder", required=True, help="address of the machine's description")
            command.add_argument("--tool", action="append", default=[], help="NAME=VERSION of a program that built the release")
            command.add_argument("--key", help="file of the private key")
            command.add_argument("--prebuilt", action="store_true")
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except (signing.Unusable, registry.Refused) as reason:
        sys.exit(f"release: {reason}")


if __name__ == "__main__":
    main()
