"""libaddend.so on the glibc of Debian 11, the symbols that it asks for, and the wheel."""
import re
import subprocess
import zipfile

import pytest

from tests.debian import root

NEWEST = (2, 28)
PROGRAM = """
import addend, numpy, platform
addend.init()
print(platform.libc_ver()[1], addend.push_pull(numpy.full(1000, addend.rank(), numpy.float32), "t", op=addend.Sum)[0])
addend.shutdown()
"""


@pytest.mark.parametrize("library", ["libaddend.so", "libaddend_cuda.so"])
def test_no_symbol_is_newer_than_glibc_2_28(library):
    path = root.ROOT / "build" / "lib" / library
    if not path.exists():
        pytest.skip(f"this build has no {library}")
    assert newest_glibc(path) <= NEWEST, f"objdump -T {path} names it"


def newest_glibc(path):
    listed = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    return max((int(major), int(minor)) for major, minor in re.findall(r"\(GLIBC_(\d+)\.(\d+)", listed))


@pytest.fixture
def debian_11(tmp_path):
    return root.python_or_skip("bullseye", tmp_path)


def sums(said):
    return re.findall(r"^(?:\[\d\] )?2\.31 (\S+)$", said, re.M)


def test_ranks_sum_on_debian_11(debian_11):
    said = root.run(["/usr/bin/python3", "-m", "addend", "run", "--nodes", "2", "-n", "2", "--", debian_11, "-c", PROGRAM])
    assert sums(said) == ["6.0"] * 4, said


@pytest.fixture(scope="module")
def wheel():
    root.run(["scripts/wheel"])
    (made,) = (root.ROOT / "build" / "wheels").glob("*.whl")
    return made


def test_the_wheel_is_for_any_python_and_glibc_2_28(wheel, tmp_path):
    assert re.fullmatch(r"addend-[0-9.]+-py3-none-manylinux_2_28_(x86_64|aarch64)\.whl", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    libraries = [path for path in tmp_path.rglob("*.so") if "bin" not in path.parts]
    assert libraries and all(newest_glibc(path) <= NEWEST for path in libraries), libraries
    bundled = {path.name for path in (tmp_path.glob("*.data/purelib/addend/bin/lib/*"))}
    asked = {name for path in tmp_path.glob("*.data/purelib/addend/bin/lib/*") if path.is_file()
             for name in re.findall(r"NEEDED +(\S+)", subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout)}
    assert asked <= bundled, f"the services need {asked - bundled}"


def test_the_wheel_brings_the_services_to_debian_11(wheel, debian_11, tmp_path):
    """Its pip installs the wheel; its Python runs the services and the ranks, and a script that starts them by itself."""
    installed = tmp_path / "installed"
    root.run([debian_11, "-m", "pip", "install", "--no-deps", "--no-index", "--target", installed, wheel])
    said = root.run([debian_11, "-m", "addend", "run", "-n", "2", "--servers", "1", "--", "python3", "-c", PROGRAM], PYTHONPATH=str(installed))
    assert sums(said) == ["1.0"] * 2, said
    said = root.run([debian_11, "-c", PROGRAM], PYTHONPATH=str(installed))
    assert "addend: no agent runs here: started a scheduler and an agent" in said and sums(said) == ["0.0"], said
