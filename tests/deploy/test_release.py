"""The files of a release: the chart's package, bills of materials, provenance, checksums and signatures, and the notice of every change to them.

tests/containers/test_release.py makes a release of the real images, and pushes it to a registry.
"""
import base64
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import tarfile
import types
import xml.etree.ElementTree

import pytest
import yaml

from deploy.release import debian, helm_chart, signing
from deploy.release.layout import Layout, digest_of
from tests.deploy import release_fixture as fixture
from tests.support import release

ROOT, VERSION = release.ROOT, release.VERSION
CHART = ROOT / "deploy/helm/addend"
ARCHIVE = f"addend-{VERSION}.tgz"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    private, public = release.make_keys(tmp_path_factory.mktemp("keys"))
    return types.SimpleNamespace(private=private, public=public)


@pytest.fixture(scope="module")
def made(tmp_path_factory, keys):
    return fixture.assemble(tmp_path_factory.mktemp("release"), f"--key={keys.private}")


@pytest.fixture
def copied(tmp_path, made):
    """A copy of the release, to change."""
    folder = tmp_path / "release"
    shutil.copytree(made.folder, folder)
    return types.SimpleNamespace(folder=folder, layout=lambda name: Layout(folder / "oci" / name))


def load(made, name):
    return json.loads((made.folder / name).read_text())


def digests(made):
    return {name: made.layout(name).tags()[VERSION] for name in fixture.IMAGES}


# ---- the chart ----

def definition():
    return yaml.safe_load((CHART / "Chart.yaml").read_text())


def test_the_metadata_of_the_chart_have_the_version_of_the_build_everywhere():
    chart = definition()
    assert chart["version"] == chart["appVersion"] == VERSION
    text = (CHART / "Chart.yaml").read_text()
    assert set(re.findall(r"/v(\d[\w.-]*)/", text)) == {VERSION}
    assert chart["annotations"]["artifacthub.io/prerelease"] == str("-" in VERSION).lower()


def test_the_images_of_the_metadata_are_those_of_the_values():
    listed = {entry["image"] for entry in yaml.safe_load(definition()["annotations"]["artifacthub.io/images"])}
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    images = [values[part]["image"] for part in ("scheduler", "summation", "agent", "test")]
    used = {f"{image['registry']}/{image['repository']}:{VERSION}" for image in images}
    assert listed == used == {f"ghcr.io/addend/{name}:{VERSION}" for name in fixture.IMAGES}
    assert values["kubeflow"]["image"] in listed


def test_links_of_the_metadata_lead_to_files_of_the_repository():
    chart = definition()
    annotations = chart["annotations"]
    entries = yaml.safe_load(annotations["artifacthub.io/links"])
    entries += [link for change in yaml.safe_load(annotations["artifacthub.io/changes"]) for link in change["links"]]
    addresses = [chart["icon"], *(person["url"] for person in chart["maintainers"]), *(entry["url"] for entry in entries)]
    paths = [match for address in addresses for match in re.findall(r"addend/addend/(?:blob/)?(?:v[\d.]+|main)/([^#]+)", address)]
    assert len(paths) >= 4 and not [path for path in paths if not (ROOT / path).is_file()]
    assert xml.etree.ElementTree.parse(ROOT / paths[0]).getroot().tag.endswith("svg")
    assert chart["home"] == chart["sources"][0] and chart["keywords"]


def test_annotations_are_those_that_artifact_hub_knows():
    annotations = definition()["annotations"]
    known = {"category", "license", "prerelease", "operator", "containsSecurityUpdates", "images", "links", "changes"}
    assert {key.removeprefix("artifacthub.io/") for key in annotations} == known and all(isinstance(value, str) for value in annotations.values())
    kinds = {change["kind"] for change in yaml.safe_load(annotations["artifacthub.io/changes"])}
    assert kinds <= {"added", "changed", "deprecated", "removed", "fixed", "security"}
    assert annotations["artifacthub.io/containsSecurityUpdates"] == str("security" in kinds).lower()
    assert set(yaml.safe_load((CHART.parent / "artifacthub-repo.yml").read_text())) <= {"repositoryID", "owners", "ignore"}


def archived(made):
    with tarfile.open(made.folder / ARCHIVE) as tar:
        return {member.name.removeprefix("addend/"): tar.extractfile(member).read().decode() for member in tar}


def test_the_chart_is_packaged_without_the_files_that_helm_ignores(made):
    files = archived(made)
    expected = {path.relative_to(CHART).as_posix() for path in CHART.rglob("*") if path.is_file()}
    assert set(files) - {"LICENSE"} == {name for name in expected if not name.startswith("ci/")}
    changed = {name for name in files if name != "LICENSE" and files[name] != (CHART / name).read_text()}
    assert changed == {"values.yaml", "Chart.yaml", "README.md"}


def test_every_image_of_the_packaged_chart_has_the_registry_and_the_digest_of_the_release(made):
    files = archived(made)
    values = yaml.safe_load(files["values.yaml"])
    for part, name in zip(("scheduler", "summation", "agent", "test"), fixture.IMAGES):
        image = values[part]["image"]
        assert f"{image['registry']}/{image['repository']}@{image['digest']}" == f"{fixture.REGISTRY}/{name}@{digests(made)[name]}"
    named = {f"{fixture.REGISTRY}/{name}:{VERSION}@{digest}" for name, digest in digests(made).items()}
    assert values["kubeflow"]["image"] in named
    assert {entry["image"] for entry in yaml.safe_load(yaml.safe_load(files["Chart.yaml"])["annotations"]["artifacthub.io/images"])} == named
    assert f"helm install addend oci://{fixture.REGISTRY}/charts/addend --version {VERSION} " in files["README.md"]
    assert not [link for link in re.findall(r"\]\(([^)]*)\)", files["README.md"]) if not link.startswith("https://")]


def test_nothing_but_the_images_differs_from_the_values_of_the_repository(made):
    before, after = (CHART / "values.yaml").read_text().splitlines(), archived(made)["values.yaml"].splitlines()
    assert len(before) == len(after)
    assert {line.split(":")[0].strip() for line, other in zip(before, after) if line != other} == {"registry", "repository", "digest", "image"}


def test_a_registry_without_a_folder_has_the_images_at_its_top():
    some = {name: f"sha256:{'1' * 64}" for name in fixture.IMAGES}
    pinned = helm_chart.pinned((CHART / "values.yaml").read_text(), VERSION, some, "localhost:5000")
    assert 'registry: localhost:5000\n' in pinned and "repository: addend-agent\n" in pinned


def test_the_chart_is_an_artifact_as_helm_pushes_it(made):
    manifest = made.layout("charts/addend").manifest(VERSION)
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    assert [layer["mediaType"] for layer in manifest["layers"]] == ["application/vnd.cncf.helm.chart.content.v1.tar+gzip"]
    assert made.layout("charts/addend").read(manifest["layers"][0]["digest"]) == (made.folder / ARCHIVE).read_bytes()
    assert json.loads(made.layout("charts/addend").read(manifest["config"]["digest"]))["version"] == VERSION
    hub = made.layout("charts/addend").manifest("artifacthub.io")
    assert made.layout("charts/addend").read(hub["layers"][0]["digest"]) == (CHART.parent / "artifacthub-repo.yml").read_bytes()


# ---- bills of materials and provenance ----

def packages(document):
    return {package["name"]: package for package in document["packages"]}


def purl(package):
    return package["externalRefs"][0]["referenceLocator"]


def test_the_bill_of_a_service_has_its_debian_packages_with_versions_licences_and_addresses(made):
    found = packages(load(made, f"addend-scheduler-{VERSION}.spdx.json"))
    assert purl(found["zlib1g"]) == "pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1?arch=amd64&distro=debian-12&upstream=zlib"
    assert purl(found["libgrpc++1.51"]) == "pkg:deb/debian/libgrpc%2B%2B1.51@1.51.1-3%2Bb1?arch=amd64&distro=debian-12&upstream=grpc%401.51.1-3"
    assert found["zlib1g"]["versionInfo"] == "1:1.2.13.dfsg-1"
    assert found["zlib1g"]["licenseDeclared"] == "(MIT OR GPL-2.0-or-later) AND Zlib"
    assert found["libgrpc++1.51"]["licenseDeclared"] == "Apache-2.0 AND LicenseRef-Artistic-or-GPL-1"
    assert found["libc6"]["licenseDeclared"] == "NOASSERTION", "its notice is prose"


def test_the_bill_of_a_service_has_our_binary_with_its_checksum_and_the_base_image(made):
    document = load(made, f"addend-scheduler-{VERSION}.spdx.json")
    found = packages(document)
    assert found["addend-scheduler"]["checksums"][0]["checksumValue"] == hashlib.sha256(b"the program addend-scheduler").hexdigest()
    assert found["addend-scheduler"]["licenseDeclared"] == "Apache-2.0" and fixture.REVISION in purl(found["addend-scheduler"])
    base = found["docker.io/library/debian"]
    assert base["checksums"][0]["checksumValue"] == fixture.BASE[1].removeprefix("sha256:") and base["versionInfo"] == "bookworm-slim"
    assert {"spdxElementId": base["SPDXID"], "relationshipType": "BUILD_DEPENDENCY_OF",
            "relatedSpdxElement": found[f"{fixture.REGISTRY}/addend-scheduler"]["SPDXID"]} in document["relationships"]
    image = found[f"{fixture.REGISTRY}/addend-scheduler"]
    assert f"sha256:{image['checksums'][0]['checksumValue']}" == digests(made)["addend-scheduler"]


def test_the_bill_of_the_tools_reads_all_layers_as_the_container_engine_does(made):
    document = load(made, f"addend-tools-{VERSION}.spdx.json")
    found = packages(document)
    assert {"bash", "libz", "zlib1g", "addendctl", "libaddend.so", "addend-python"} <= set(found) and "gone" not in found
    assert found["libz"]["licenseDeclared"] == "Zlib", "its folder is a link to that of zlib1g, and its file of the base is removed"
    assert "DESCENDANT_OF" in {relation["relationshipType"] for relation in document["relationships"]}
    files, _ = made.layout("addend-tools").files(VERSION, lambda path: True)
    assert "usr/share/doc/old/copyright" not in files and "usr/share/doc/bash/copyright" in files


def test_the_bill_of_the_wheel_has_the_packages_of_its_libraries(made):
    found = packages(load(made, f"addend-wheel-{VERSION}.spdx.json"))
    installed = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "libc6"], capture_output=True, text=True, check=True).stdout
    assert found["libc6"]["versionInfo"] == installed
    assert found["addend"]["checksums"][0]["checksumValue"] == hashlib.sha256(next(made.folder.glob("*.whl")).read_bytes()).hexdigest()


def test_bills_follow_the_rules_of_spdx(made):
    documents = [load(made, path.name) for path in made.folder.glob("*.spdx.json")]
    assert len(documents) == len(fixture.IMAGES) + 2
    assert len({document["documentNamespace"] for document in documents}) == len(documents)
    for document in documents:
        elements = [package["SPDXID"] for package in document["packages"]]
        assert len(set(elements)) == len(elements) and all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", element) for element in elements)
        ends = {relation[end] for relation in document["relationships"] for end in ("spdxElementId", "relatedSpdxElement")}
        assert ends == {*elements, "SPDXRef-DOCUMENT"}, "elements without a relation, or relations to nothing"
        named = {word for package in document["packages"] for word in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", package["licenseDeclared"])}
        assert named == {text["licenseId"] for text in document.get("hasExtractedLicensingInfos", [])}
        assert document["creationInfo"]["created"] == "2026-01-02T03:04:05Z"
        assert all(set(package) >= {"name", "SPDXID", "downloadLocation", "licenseConcluded", "licenseDeclared"} for package in document["packages"])


@pytest.mark.parametrize("notice,licences", [
    ("License: GPL-2+\n", ("GPL-2.0-or-later",)),
    ("License: LGPL-2.1\nLicense: Expat\n text\n", ("LGPL-2.1-only", "MIT")),
    ("License: GPL-3+ with GCC-Runtime exception\n", ("GPL-3+ with GCC-Runtime exception",)),
    ("License:\n the text\n", ()),
])
def test_debians_names_of_licences_become_those_of_spdx(notice, licences):
    assert debian.licences_in(fixture.FORMAT + notice) == licences


def test_the_provenance_names_sources_base_image_and_all_artifacts(made):
    statement = load(made, f"addend-{VERSION}.provenance.json")
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    materials = {tuple(material["digest"].items())[0] for material in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert materials == {("gitCommit", fixture.REVISION), ("sha256", fixture.BASE[1].removeprefix("sha256:"))}
    assert statement["predicate"]["runDetails"]["builder"]["id"] == "https://builder.example"
    subjects = {subject["name"]: f"sha256:{subject['digest']['sha256']}" for subject in statement["subject"]}
    chart = made.layout("charts/addend").tags()[VERSION]
    files = {path.name: digest_of(path.read_bytes()) for path in (made.folder / ARCHIVE, *made.folder.glob("*.whl"))}
    assert subjects == {**{f"{fixture.REGISTRY}/{name}": digest for name, digest in {**digests(made), "charts/addend": chart}.items()}, **files}


def test_equal_input_makes_equal_bytes_except_signatures(made, tmp_path, keys):
    again = fixture.assemble(tmp_path, f"--key={keys.private}")
    names = {path.name for path in made.folder.iterdir() if path.is_file()}
    assert names == {path.name for path in again.folder.iterdir() if path.is_file()}
    different = {name for name in names if (made.folder / name).read_bytes() != (again.folder / name).read_bytes()}
    assert different and all(name.endswith(".sig") for name in different)
    for name in (*fixture.IMAGES, "charts/addend"):
        tags = [{tag: digest for tag, digest in each.layout(name).tags().items() if not tag.endswith((".sig", ".att"))} for each in (made, again)]
        assert tags[0] == tags[1]


def test_the_notes_have_the_section_of_the_change_log_and_the_digests(made):
    notes = (made.folder / "notes.md").read_text()
    assert notes.startswith("First system that trains") and "## Digests" in notes
    assert all(digest in notes for digest in digests(made).values())


# ---- signatures ----

def is_signed(public, signature, data, folder):
    """Whether openssl finds a signature in base64 to be that of the bytes."""
    (folder / "signature").write_bytes(base64.b64decode(signature))
    command = ["openssl", "dgst", "-sha256", "-verify", public, "-signature", folder / "signature"]
    return subprocess.run(command, input=data, capture_output=True, check=False).returncode == 0


def test_every_file_has_a_checksum_and_a_signature_as_of_sign_blob(made, keys, tmp_path):
    names = {path.name for path in made.folder.iterdir() if path.is_file() and path.suffix != ".sig"}
    listed = {line.split("  ")[1] for line in (made.folder / "SHA256SUMS").read_text().splitlines()}
    assert listed == names - {"SHA256SUMS"}
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=made.folder, check=False).returncode == 0
    for name in names:
        assert is_signed(keys.public, (made.folder / f"{name}.sig").read_text(), (made.folder / name).read_bytes(), tmp_path), name


@pytest.mark.parametrize("name", [*fixture.IMAGES, "charts/addend"])
def test_a_manifest_has_signature_bill_and_statements_where_cosign_looks_for_them(made, keys, tmp_path, name):
    layout = made.layout(name)
    digest = layout.tags()[VERSION]
    bill = layout.tags()[signing.attached(digest, "sbom")]
    for signed in (digest, bill):
        (layer,) = layout.manifest(f"{signed.replace(':', '-')}.sig")["layers"]
        payload = layout.read(layer["digest"])
        assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
        assert json.loads(payload)["critical"] == {"identity": {"docker-reference": f"{fixture.REGISTRY}/{name}"},
                                                   "image": {"docker-manifest-digest": signed}, "type": "cosign container image signature"}
        assert is_signed(keys.public, layer["annotations"]["dev.cosignproject.cosign/signature"], payload, tmp_path)
    (document,) = layout.manifest(signing.attached(digest, "sbom"))["layers"]
    file = f"{'addend-chart' if name.startswith('charts') else name}-{VERSION}.spdx.json"
    assert layout.read(document["digest"]) == (made.folder / file).read_bytes()
    statements = [json.loads(layout.read(layer["digest"])) for layer in layout.manifest(signing.attached(digest, "att"))["layers"]]
    kinds = set()
    for envelope in statements:
        body = base64.b64decode(envelope["payload"])
        pre = f"DSSEv1 {len(envelope['payloadType'])} {envelope['payloadType']} {len(body)} ".encode()
        assert is_signed(keys.public, envelope["signatures"][0]["sig"], pre + body, tmp_path)
        kinds.add(json.loads(body)["predicateType"])
    assert kinds == {"https://spdx.dev/Document", "https://slsa.dev/provenance/v1"}


def test_an_unchanged_release_matches_its_key(made, keys):
    done = release.verify(keys.public, made.folder)
    assert done.returncode == 0 and "matches the key" in done.stdout, done.stderr


def test_a_release_does_not_match_the_key_of_somebody_else(made, tmp_path):
    _, other = release.make_keys(tmp_path)
    done = release.verify(other, made.folder)
    assert done.returncode == 1 and "the signature SHA256SUMS.sig is not that of SHA256SUMS by this key" in done.stderr


def change(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


FILES = [ARCHIVE, f"addend-{VERSION}-py3-none-any.whl", f"addend-{VERSION}.provenance.json", "digests.txt", "notes.md", "SHA256SUMS",
         *(f"{name}-{VERSION}.spdx.json" for name in (*fixture.IMAGES, "addend-chart", "addend-wheel"))]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_noticed_and_named(copied, keys, name):
    change(copied.folder / name)
    done = release.verify(keys.public, copied.folder)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and name in done.stderr, done.stderr


@pytest.mark.parametrize("name", FILES)
def test_a_changed_or_missing_signature_is_noticed_and_named(copied, keys, name):
    (copied.folder / f"{name}.sig").write_text((copied.folder / ("notes.md.sig" if name != "notes.md" else "digests.txt.sig")).read_text())
    assert f"the signature {name}.sig is not that of {name}" in release.verify(keys.public, copied.folder).stderr
    (copied.folder / f"{name}.sig").unlink()
    assert f"{name}.sig is missing" in release.verify(keys.public, copied.folder).stderr


@pytest.mark.parametrize("repository", ["addend-agent", "charts/addend"])
@pytest.mark.parametrize("part", ["config", "layer", "manifest", "signature", "payload", "statement", "bill"])
def test_a_changed_part_of_an_image_or_the_chart_is_noticed_and_named(copied, keys, repository, part):
    layout = copied.layout(repository)
    digest = layout.tags()[VERSION]
    attached = {suffix: layout.manifest(signing.attached(digest, suffix)) for suffix in ("sig", "sbom", "att")}
    blob = {"config": layout.manifest(VERSION)["config"]["digest"], "layer": layout.manifest(VERSION)["layers"][0]["digest"], "manifest": digest,
            "signature": layout.tags()[signing.attached(digest, "sig")], "payload": attached["sig"]["layers"][0]["digest"],
            "statement": attached["att"]["layers"][0]["digest"], "bill": attached["sbom"]["layers"][0]["digest"]}[part]
    change(layout.path(blob))
    done = release.verify(keys.public, copied.folder)
    assert done.returncode == 1 and f"oci/{repository}/blobs/sha256/{blob[7:]} does not have the checksum in its name" in done.stderr, done.stderr


def test_another_image_under_the_tag_is_noticed(copied, keys):
    layout = copied.layout("addend-agent")
    manifest = layout.manifest(VERSION)
    other = fixture.layer({"usr/bin/addend-agent": "another program"})
    config = fixture.layout.Content("application/vnd.oci.image.config.v1+json", layout.read(manifest["config"]["digest"]))
    layout.add(VERSION, config, [other])
    assert "oci/addend-agent/index.json does not have the digest of 0.1.0 in digests.txt" in release.verify(keys.public, copied.folder).stderr


def resign(copied, suffix, attach, key):
    """Replaces what is attached to the agent's image by the same of another key or another image."""
    layout = copied.layout("addend-agent")
    digest = layout.tags()[VERSION]
    attach(key, layout, digest)
    return signing.attached(digest, suffix)


def test_a_signature_of_another_key_in_the_registry_is_noticed(copied, keys, tmp_path):
    other = signing.Key(release.make_keys(tmp_path)[0])
    resign(copied, "sig", lambda key, layout, digest: signing.sign_manifest(key, layout, "x", digest), other)
    assert f"the signature of {VERSION} in oci/addend-agent is not by this key" in release.verify(keys.public, copied.folder).stderr


def test_a_signature_of_another_image_is_noticed(copied, keys):
    layout, other = copied.layout("addend-agent"), copied.layout("addend-tools")
    digest, signed = layout.tags()[VERSION], other.manifest(signing.attached(other.tags()[VERSION], "sig"))["layers"][0]
    content = fixture.layout.Content(signed["mediaType"], other.read(signed["digest"]), signed["annotations"])
    signing.add_image(layout, signing.attached(digest, "sig"), [content])
    assert f"the signature of {VERSION} in oci/addend-agent is that of another image" in release.verify(keys.public, copied.folder).stderr


@pytest.mark.parametrize("by_other,sentence", [(True, "is not signed by this key"), (False, "is that of another image")])
def test_a_statement_of_another_key_or_about_another_image_is_noticed(copied, keys, tmp_path, by_other, sentence):
    layout = copied.layout("addend-agent")
    digest = layout.tags()[VERSION]
    key = signing.Key(release.make_keys(tmp_path)[0] if by_other else keys.private)
    signing.attest(key, layout, digest, [{"predicateType": "x", "subject": digest if by_other else "another"}])
    assert sentence in release.verify(keys.public, copied.folder).stderr


def test_missing_files_and_images_are_named_unless_they_may_be_missing(copied, keys):
    (copied.folder / ARCHIVE).unlink()
    assert f"{ARCHIVE} is missing" in release.verify(keys.public, copied.folder).stderr
    shutil.rmtree(copied.folder / "oci" / "addend-tools")
    assert release.verify(keys.public, copied.folder, "--ignore-missing").returncode == 0
    (copied.folder / "stranger.txt").write_text("x")
    assert "stranger.txt is not in SHA256SUMS" in release.verify(keys.public, copied.folder, "--ignore-missing").stderr


@pytest.mark.parametrize("suffix,sentence", [("sig", "the signature of"), ("att", "the provenance of")])
def test_a_missing_attachment_is_named(copied, keys, suffix, sentence):
    layout = copied.layout("charts/addend")
    tag = signing.attached(layout.tags()[VERSION], suffix)
    layout._write_index([entry for entry in layout._index() if entry["annotations"]["org.opencontainers.image.ref.name"] != tag])
    assert f"{sentence} {VERSION} is missing in oci/charts/addend" in release.verify(keys.public, copied.folder).stderr


@pytest.mark.parametrize("command,sentence", [
    ("openssl ecparam -name secp384r1 -genkey -noout -out {}", "not on the curve P-256"),
    ("openssl genrsa -out {} 2048", "not on the curve P-256"),
    ("openssl ecparam -name prime256v1 -genkey -noout | openssl ec -aes256 -passout pass:x -out {}", "PEM without a password"),
    ("echo -----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY----- > {}", "cosign.key is encrypted"),
])
def test_a_key_that_cannot_sign_is_refused_in_a_sentence(tmp_path, command, sentence):
    subprocess.run(command.format(tmp_path / "key"), shell=True, check=True, capture_output=True)
    done = fixture.run("key", tmp_path / "key")
    assert done.returncode == 1 and sentence in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


# ---- programs that stand in for cosign and skopeo ----

def stand_in(folder, name, script):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)
    return folder


def test_without_a_key_cosign_signs_every_file_and_every_pushed_manifest(tmp_path):
    bin_folder = stand_in(tmp_path / "bin", "cosign", f'echo "$@" >>{tmp_path}/calls')
    stand_in(bin_folder, "skopeo", '[ "$1" != inspect ] || { echo "manifest unknown" >&2; exit 1; }')
    folder = tmp_path / "release"
    folder.mkdir()
    made = fixture.assemble(folder, "--keyless", path=bin_folder)
    done = fixture.run("push", folder, *fixture.NAMED, "--keyless", path=bin_folder)
    assert done.returncode == 0, done.stderr
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    blobs = {pathlib.Path(call[-1]).name for call in calls if call[0] == "sign-blob"}
    assert blobs == {path.name for path in folder.iterdir() if path.is_file()}
    pushed = {f"{fixture.REGISTRY}/{name}@{digest}" for name in (*fixture.IMAGES, "charts/addend")
              for tag, digest in made.layout(name).tags().items() if tag != "artifacthub.io"}
    assert {call[-1] for call in calls if call[0] == "sign"} == pushed
    attested = [(call[2], call[-1]) for call in calls if call[0] == "attest"]
    assert len(set(attested)) == 2 * (len(fixture.IMAGES) + 1) and {kind for kind, _ in attested} == {"--type=spdxjson", "--type=slsaprovenance1"}


@pytest.mark.parametrize("answer,sentence", [
    ("echo '{}'", "is published, and published tags are never overwritten"),
    ("echo 'connection refused' >&2; exit 1", "does not say whether it has charts/addend:"),
])
def test_a_registry_that_has_the_version_or_does_not_answer_is_a_refusal(tmp_path, answer, sentence):
    done = fixture.run("check", *fixture.NAMED, path=stand_in(tmp_path / "bin", "skopeo", answer))
    assert done.returncode == 1 and sentence in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_an_image_tag_with_another_digest_is_refused_and_with_the_same_an_interrupted_push_goes_on(tmp_path, made):
    layout = made.layout("addend-agent")
    manifest = layout.path(layout.tags()[VERSION])
    script = f"""case "$*" in
  inspect*addend-agent:*) cat {{}} ;;
  inspect*) echo 'manifest unknown' >&2; exit 1 ;;
  copy*) echo "${{{{@: -1}}}}" >>{tmp_path}/copied ;;
esac"""
    bin_folder = stand_in(tmp_path / "bin", "skopeo", script.format("/etc/hostname"))
    done = fixture.run("push", made.folder, *fixture.NAMED, path=bin_folder)
    assert done.returncode == 1 and f"addend-agent:{VERSION} exists with another digest" in done.stderr and not (tmp_path / "copied").exists()
    stand_in(bin_folder, "skopeo", script.format(manifest))
    assert fixture.run("push", made.folder, *fixture.NAMED, path=bin_folder).returncode == 0
    copied = (tmp_path / "copied").read_text().splitlines()
    assert copied[-1] == f"docker://{fixture.REGISTRY}/charts/addend:{VERSION}", "the chart comes last: it names the images"
    assert len(copied) == 5 * 5 + 1


# ---- the sources of a release ----

@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return release.checkout(tmp_path_factory.mktemp("checkout"))


def refusal(folder, *arguments):
    done = subprocess.run([folder / "scripts" / "release", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in (64, 65, 77) and len(done.stderr.splitlines()) == 1, done.stderr + done.stdout
    return done.stderr


def test_sources_that_are_not_those_of_the_tag_are_refused_in_a_sentence(checkout, keys):
    key = f"--key={keys.private}"
    (checkout / "stray.txt").write_text("x")
    assert "the checkout is not clean ('?? stray.txt'" in refusal(checkout, key)
    (checkout / "stray.txt").unlink()
    release.git(checkout, "tag", "-d", release.TAG)
    assert f"the commit has no tag: version {VERSION} in CMakeLists.txt asks for v{VERSION}" in refusal(checkout, key)
    release.git(checkout, "tag", "v9.9.9")
    assert f"the tag v9.9.9 does not equal the version {VERSION}" in refusal(checkout, key)
    release.git(checkout, "tag", "-d", "v9.9.9")
    for name, before, after, sentence in (
            ("CHANGELOG.md", f"## {VERSION} (2026-01-02)", f"## {VERSION} (not released)", f"CHANGELOG.md says that {VERSION} is not released"),
            ("deploy/helm/addend/Chart.yaml", f"\nversion: {VERSION}\n", "\nversion: 9.9.9\n", "the chart's version")):
        text = (checkout / name).read_text()
        (checkout / name).write_text(text.replace(before, after))
        release.git(checkout, "commit", "-q", "-a", "-m", "change")
        release.git(checkout, "tag", "-f", release.TAG)
        assert sentence in refusal(checkout, key)
        (checkout / name).write_text(text)
        release.git(checkout, "commit", "-q", "-a", "-m", "change back")


@pytest.mark.parametrize("arguments,sentence", [
    ([], "a release is signed: give a private key"),
    (["--key=/no/such/file"], "there is no file for --key"),
    (["--key=x", "--keyless"], "exclude each other"),
    (["--sign"], "unknown argument '--sign'"),
    (["--key=/etc/hostname", "--output=/etc"], "/etc is not empty and holds no release"),
    (["--verify"], "it needs the public key"),
    (["--verify", "--key=/etc/hostname"], "cannot read a public key"),
])
def test_arguments_that_make_no_release_are_refused_in_a_sentence(arguments, sentence):
    assert sentence in refusal(ROOT, *arguments)
