"""scripts/release makes a release of the images with the tested binaries and pushes it to a registry on this machine; a user pulls and verifies it.

Debian's docker-registry serves on a port of the loopback interface. The commands of docs/releasing.md are run as they stand there, those of
cosign by the cosign of Debian 13, in a root file system of its own.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import types

import pytest

from tests.debian import root as debian
from tests.deploy import chart
from tests.support import release
from tests.support.podman import BASE_IMAGE
from tests.support.ports import free_port
from tests.support.processes import eventually

VERSION = release.VERSION
IMAGES = ("addend-scheduler", "addend-summation", "addend-agent", "addend-tools")
CONFIGURATION = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{address}"}}
"""


def answers(address):
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """The address of an empty registry without TLS, and its configuration."""
    missing = [program for program in ("docker-registry", "skopeo") if not shutil.which(program)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (packages of these names)")
    folder = tmp_path_factory.mktemp("registry")
    address, configuration = f"127.0.0.1:{free_port()}", folder / "registry.yml"
    configuration.write_text(CONFIGURATION.format(folder=folder / "data", address=address))
    with open(folder / "log", "wb") as log, subprocess.Popen(["docker-registry", "serve", configuration], stdout=log, stderr=log) as process:
        try:
            eventually(lambda: answers(address), 30, "the registry to answer")
            yield types.SimpleNamespace(address=address, configuration=configuration)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def pushed(podman, registry, tmp_path_factory):
    """A release that has been pushed: its folder, checkout and public key; and `run`, which starts scripts/release again."""
    folder = tmp_path_factory.mktemp("release")
    private, public = release.make_keys(folder)
    checkout = folder / "checkout"
    checkout.mkdir()
    release.add_binaries(release.checkout(checkout))

    def run(output, *options):
        return subprocess.run([checkout / "scripts" / "release", f"--key={private}", "--prebuilt", f"--base-image={BASE_IMAGE}",
                               f"--output={folder / output}", "--builder=https://builder.example", *options, "--", "--pull=never", "--network=host"],
                              env=podman.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    name = f"{registry.address}/addend"
    done = run("pushed", f"--push={name}", "--plain-http")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    revision = release.git(checkout, "rev-parse", "HEAD").strip()
    yield types.SimpleNamespace(folder=folder / "pushed", name=name, public=public, run=run, revision=revision)
    for image in IMAGES:
        podman.run("rmi", "--force", f"{name}/{image}:{VERSION}", f"ghcr.io/addend/{image}:{VERSION}")


def digests(pushed):
    """{reference: digest} of the images and the chart."""
    lines = [line.split() for line in (pushed.folder / "digests.txt").read_text().splitlines()]
    return {reference: digest for reference, digest in lines if reference.endswith(f":{VERSION}")}


def test_the_release_matches_its_key(pushed):
    done = release.verify(pushed.public, pushed.folder)
    assert done.returncode == 0, done.stderr


def test_a_user_pulls_the_images_by_the_digests_of_the_chart_and_runs_them(podman, pushed):
    archive = pushed.folder / f"addend-{VERSION}.tgz"
    values = subprocess.run(["tar", "-xzOf", archive, "addend/values.yaml"], check=True, capture_output=True, text=True).stdout
    blocks = re.findall(r"registry: (\S+)\n.*?repository: (\S+)\n.*?digest: \"(\S+)\"", values, re.S)
    named = {f"{registry}/{repository}": digest for registry, repository, digest in blocks}
    assert named == {reference.rsplit(":", 1)[0]: digest for reference, digest in digests(pushed).items() if "/charts/" not in reference}
    for repository, digest in named.items():
        podman("pull", "--tls-verify=false", f"{repository}@{digest}")
        program = repository.rsplit("/", 1)[1]
        if program != "addend-tools":
            assert podman("run", "--rm", "--network=none", f"{repository}@{digest}", "--version").startswith(f"{program} {VERSION}")


def test_the_bill_of_an_image_has_every_package_of_its_records_and_the_base_image(podman, pushed):
    base = podman.inspect(BASE_IMAGE)["Digest"]
    for name in IMAGES:
        document = json.loads((pushed.folder / f"{name}-{VERSION}.spdx.json").read_text())
        found = {package["name"]: package for package in document["packages"]}
        root = pathlib.Path(podman("image", "mount", f"{pushed.name}/{name}:{VERSION}"))
        try:
            if name == "addend-tools":
                installed = subprocess.run(["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f=${Package} ${Version}\n"],
                                           check=True, capture_output=True, text=True)
                expected = dict(line.split() for line in installed.stdout.splitlines())
            else:
                records = (root / "var/lib/dpkg/status.d").iterdir()
                expected = {record.name: re.search(r"^Version: (.*)$", record.read_text(), re.M)[1] for record in records}
        finally:
            podman("image", "unmount", f"{pushed.name}/{name}:{VERSION}")
        debian_packages = {key: package["versionInfo"] for key, package in found.items()
                           if "pkg:deb/" in package["externalRefs"][0]["referenceLocator"]}
        assert debian_packages == expected and len(expected) > 10
        assert found[BASE_IMAGE.rsplit(":", 1)[0]]["checksums"][0]["checksumValue"] == base.removeprefix("sha256:")
        assert sum(package["licenseDeclared"] != "NOASSERTION" for package in document["packages"]) > len(expected) / 2


def test_the_provenance_names_the_commit(pushed):
    statement = json.loads((pushed.folder / f"addend-{VERSION}.provenance.json").read_text())
    assert statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": pushed.revision}


def test_a_published_version_is_refused(pushed):
    done = pushed.run("refused", f"--push={pushed.name}", "--plain-http")
    assert done.returncode == 1 and f"{pushed.name}/charts/addend:{VERSION} is published" in done.stderr


def test_a_second_build_makes_the_same_images_and_the_same_wheel(pushed):
    """Without a push the names are those of another registry, which only the chart, its digest and the bills of images contain."""
    done = pushed.run("second")
    assert done.returncode == 0, done.stderr[-2000:]
    second = pushed.folder.parent / "second"
    images = [{line.split()[1] for line in (folder / "digests.txt").read_text().splitlines() if re.search(rf"addend-\w+:{VERSION} ", line)}
              for folder in (second, pushed.folder)]
    assert images[0] == images[1] and len(images[0]) == len(IMAGES)
    for name in (next(pushed.folder.glob("*.whl")).name, f"addend-wheel-{VERSION}.spdx.json"):
        assert (second / name).read_bytes() == (pushed.folder / name).read_bytes(), name


# ---- the commands of the documents ----

def commands(word):
    """The block of commands under 'Verification' of docs/releasing.md that contains a word."""
    section = (release.ROOT / "docs/releasing.md").read_text().split("\n## Verification\n")[1]
    block, = [block for block in re.findall(r"```sh\n(.*?)```", section, re.S) if word in block]
    return block


def run_commands(block, pushed, folder, path=None):
    """The output of the documented commands on the pushed release, in a folder with its public key and its files."""
    for file in (pushed.public, *(file for file in pushed.folder.iterdir() if file.is_file())):
        shutil.copy(file, folder / ("addend.pub" if file == pushed.public else file.name))
    settings = folder / ".config/containers/registries.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'[[registry]]\nlocation = "{pushed.name.split("/")[0]}"\ninsecure = true\n')  # it has no TLS
    env = {**os.environ, "HOME": str(folder), "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    return subprocess.run(["bash", "-euo", "pipefail", "-c", block.replace("ghcr.io/addend", pushed.name)], cwd=folder, env=env,
                          capture_output=True, text=True, check=False)


def test_the_documented_commands_of_openssl_verify_the_files(pushed, tmp_path):
    block = commands("sha256sum --check")
    done = run_commands(block, pushed, tmp_path)
    assert done.returncode == 0 and "Verified OK" in done.stdout and f"addend-{VERSION}.tgz: OK" in done.stdout, done.stderr
    (pushed.folder.parent / "other").mkdir()
    _, other = release.make_keys(pushed.folder.parent / "other")
    wrong = types.SimpleNamespace(**{**vars(pushed), "public": other})
    assert run_commands(block, wrong, tmp_path).returncode != 0


def test_the_documented_commands_without_cosign_verify_an_image(pushed, tmp_path):
    if not shutil.which("jq"):
        pytest.skip("jq is not installed (package jq)")
    done = run_commands(commands("skopeo copy"), pushed, tmp_path)
    signed = f'"docker-manifest-digest":"{digests(pushed)[f"{pushed.name}/addend-scheduler:{VERSION}"]}"'
    assert done.returncode == 0 and "Verified OK" in done.stdout and signed in done.stdout, done.stderr


def test_the_documented_commands_of_cosign_verify_images_chart_statements_and_files(pushed, tmp_path):
    cosign = debian.root_or_skip("trixie-cosign") / "usr/bin/cosign"  # it needs no library but the C library
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cosign").symlink_to(cosign)
    done = run_commands(commands("cosign verify "), pushed, tmp_path, tmp_path / "bin")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("The signatures were verified against the specified public key") == 4 and "Verified OK" in done.stderr
    assert {digest for digest in digests(pushed).values() if digest in done.stdout} == {
        digests(pushed)[f"{pushed.name}/{name}:{VERSION}"] for name in ("addend-scheduler", "charts/addend")}


# ---- Helm ----

def test_helm_reads_the_chart_that_the_registry_has(pushed, tmp_path):
    """skopeo pulls it by its digest: the tested Helm, 3.6, knows only the preliminary format of charts in registries."""
    digest = digests(pushed)[f"{pushed.name}/charts/addend:{VERSION}"]
    source = f"docker://{pushed.name}/charts/addend@{digest}"
    subprocess.run(["skopeo", "copy", "--quiet", "--src-tls-verify=false", source, f"dir:{tmp_path}"], check=True, capture_output=True)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    pulled = tmp_path / manifest["layers"][0]["digest"].removeprefix("sha256:")
    assert pulled.read_bytes() == (pushed.folder / f"addend-{VERSION}.tgz").read_bytes()
    try:
        chart.install()
    except chart.Unavailable as error:
        pytest.skip(str(error))
    archive = chart.add_file(f"addend-{VERSION}.tgz", pulled.read_bytes())
    rendered = chart.helm("template", "x", archive, f"--kube-version={chart.KUBERNETES}")
    assert rendered.returncode == 0, rendered.stderr
    assert {reference for reference in digests(pushed).values() if reference in rendered.stdout} >= {
        digests(pushed)[f"{pushed.name}/{name}:{VERSION}"] for name in ("addend-scheduler", "addend-summation")}
