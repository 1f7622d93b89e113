"""Compiling in a container, from the sources; only with --full-images."""
import subprocess

from tests.containers.pods import CONFINED

SERVICES = ("scheduler", "summation", "agent")


def test_images_compiled_from_the_sources_hold_the_same_files_as_those_of_prebuilt_binaries(podman, build, images):
    build("compiled")
    for service in SERVICES:
        compiled, prebuilt = (paths_of(podman, f"localhost/addend-{service}:{tag}") for tag in ("compiled", "test"))
        assert compiled == prebuilt
        done = podman.run("run", "--rm", "--network=none", *CONFINED, f"localhost/addend-{service}:compiled", "--version")
        assert done.stdout.startswith(f"addend-{service} "), done.stderr


def paths_of(podman, image):
    container = podman("create", "--network=none", image)
    try:
        listing = subprocess.run(f"podman export {container} | tar --list", shell=True, env=podman.environment, check=True, capture_output=True)
    finally:
        podman("rm", container)
    return listing.stdout.decode().splitlines()
