"""Tests of the container images: scripts/test --full runs them after the build, whose binaries the images get.

They build the images of deploy/docker in a store of their own (build/containers) and run them with podman: every service as in
Kubernetes, that is as a user without a name, without capabilities, and with a root file system that is read-only.
--full-images also compiles in a container, from the sources, which takes as long as a build.
"""
import pathlib
import subprocess

import pytest

from tests.support import podman as engine
from tests.support.cluster import ROOT

HERE = pathlib.Path(__file__).parent
TAG = "test"
_cannot = engine.unavailable()


def pytest_addoption(parser):
    parser.addoption("--full-images", action="store_true", help="compile in a container, too")


def pytest_ignore_collect(collection_path, config):
    return True if collection_path.name == "test_compile.py" and not config.getoption("--full-images", default=False) else None


def pytest_collection_modifyitems(items):
    """A single skip gives the reason for missing containers, instead of a skip for every test."""
    ours = [item for item in items if item.path.parent == HERE]
    if _cannot and ours:
        ours[0].add_marker(pytest.mark.skip(reason=f"no containers here: {_cannot}"))
        items[:] = [item for item in items if item not in ours[1:]]


@pytest.fixture(scope="session")
def podman():
    with engine.Podman(ROOT / "build" / "containers") as podman:
        podman.ensure_base_image()
        yield podman


@pytest.fixture(scope="session")
def build(podman):
    """Builds images with scripts/images: build(TAG, OPTION-OR-TARGET..., engine=[ARGUMENT...])."""
    def build(tag, *arguments, engine=()):
        done = subprocess.run([ROOT / "scripts" / "images", "--engine=podman", "--repository=localhost", f"--tag={tag}", *arguments,
                               "--", "--pull=never", "--network=host", *engine], env=podman.environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return build


@pytest.fixture(scope="session")
def images(podman, build):
    """The name of each image, by its kind."""
    build(TAG, "--prebuilt")
    return {name: f"localhost/addend-{name}:{TAG}" for name in ("scheduler", "summation", "agent", "tools")}
