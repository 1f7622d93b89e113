"""Helm takes the chart's package that scripts/release writes, and installs the images of that release."""
import re

import pytest
import yaml

from tests.deploy import chart
from tests.deploy import release_fixture as fixture
from tests.support.release import VERSION


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The name of the package in Helm's folder, and the digests of the images."""
    made = fixture.assemble(tmp_path_factory.mktemp("release"))
    name = f"addend-{VERSION}.tgz"
    return chart.add_file(name, (made.folder / name).read_bytes()), {image: made.layout(image).tags()[VERSION] for image in fixture.IMAGES}


def test_helm_reads_and_lints_the_package(archive):
    shown = chart.helm("show", "chart", archive[0])
    assert shown.returncode == 0 and yaml.safe_load(shown.stdout)["version"] == VERSION, shown.stderr
    linted = chart.helm("lint", "--strict", archive[0])
    assert linted.returncode == 0 and "WARNING" not in linted.stdout and "INFO" not in linted.stdout, linted.stdout


@pytest.mark.parametrize("variant", ["default", "injection"])
def test_every_image_of_ours_that_the_package_starts_has_its_digest(archive, variant):
    name, digests = archive
    rendered = chart.helm("template", chart.RELEASE, name, f"--kube-version={chart.KUBERNETES}", f"--values=addend/ci/{variant}-values.yaml",
                          f"--api-versions={chart.POLICIES}")
    assert rendered.returncode == 0, rendered.stderr
    used = re.findall(r"[\w.:/-]*/addend-(?:scheduler|summation|agent|tools)[:@][\w.:@-]+", rendered.stdout)
    assert len(set(used)) >= 4
    pinned = re.compile("|".join(f"{re.escape(fixture.REGISTRY)}/{image}(:{re.escape(VERSION)})?@{digest}" for image, digest in digests.items()))
    assert not [reference for reference in used if not pinned.fullmatch(reference)]
