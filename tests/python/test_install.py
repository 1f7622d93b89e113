"""The installed package: it needs neither the checkout nor environment variables, nor PyTorch."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

from .conftest import DEADLINE_S, FAKE_AGENT, ROOT


def clean_environment(**more):
    drop = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    env = {k: v for k, v in os.environ.items() if not k.startswith("ADDEND_") and k not in drop}
    return dict(env, OPENBLAS_NUM_THREADS="1", PIP_DISABLE_PIP_VERSION_CHECK="1", **more)


def run(command, cwd, **more):
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S, cwd=cwd,
        env=clean_environment(**more),
    )


def leftovers():
    """The files in the package's folder of the checkout beside its sources."""
    files = {path.relative_to(ROOT) for path in (ROOT / "python").rglob("*") if path.suffix != ".py"}
    return {path for path in files if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment with the package; gives (its bin folder, pip's result, an empty folder)."""
    needed = {"ensurepip": "python3-venv", "pip": "python3-pip", "setuptools": "python3-setuptools",
              "wheel": "python3-wheel"}
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    assert not missing, "scripts/test installs what is missing here: " + ", ".join(missing)
    folder = tmp_path_factory.mktemp("install")
    made = run([sys.executable, "-m", "venv", "--system-site-packages", folder / "venv"], folder)
    assert made.returncode == 0, made.stdout + made.stderr
    before = leftovers()
    python = folder / "venv" / "bin" / "python3"
    options = ["--no-build-isolation", "--no-deps", "--no-index"]
    result = run([python, "-m", "pip", "install", *options, ROOT / "python"], folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert leftovers() == before, "pip has left something in the checkout"
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return folder / "venv" / "bin", result, elsewhere


def in_venv(installed, code, **more):
    """The output of a program that the environment's Python runs in another folder."""
    binaries, _, elsewhere = installed
    result = run([binaries / "python3", "-c", code], elsewhere, **more)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_package_brings_its_library(installed):
    code = "import addend; print(addend.__version__, addend.__file__, addend._core.lib._name)"
    version, module, library = in_venv(installed, code).split()
    folder = pathlib.Path(module).parent
    assert installed[0].parent in folder.parents
    assert pathlib.Path(library) == folder / "libaddend.so"
    assert (folder / "py.typed").exists(), "type checkers would ignore the annotations"
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    text = (ROOT / "CMakeLists.txt").read_text()
    assert f"project(addend VERSION {version} " in text
    code = "from importlib import metadata as m; d = m.metadata('addend'); "
    fields = in_venv(installed, code + "print(d['Version'], d['License'], m.requires('addend'))")
    assert fields.startswith(f"{version} Apache-2.0 ['numpy', ")
    assert re.search(r"extra == .torch.", fields), "PyTorch is wanted by the extra alone"


def test_the_command_is_installed_and_runs_ranks(installed):
    binaries, _, elsewhere = installed
    result = run([binaries / "addend", "run", "--help"], elsewhere)
    assert result.returncode == 0 and "--servers" in result.stdout
    code = "import addend, numpy; addend.init(); print(addend.push_pull(numpy.ones(3), 't', addend.Sum)); "
    code += "addend.shutdown()"
    result = run([binaries / "addend", "run", "-n", 2, "--", binaries / "python3", "-c", code], elsewhere)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] [2. 2. 2.]", "[1] [2. 2. 2.]"]


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "


def test_arrays_need_no_pytorch(installed, start_agent):
    agent = start_agent(1)
    assert FAKE_AGENT.exists()
    code = "import addend as a, numpy as n; a.init(); print(a.push_pull(n.arange(3.0), 't')); a.shutdown()"
    assert in_venv(installed, WITHOUT_TORCH + code, ADDEND_SOCKET=agent.socket) == "[0. 1. 2.]\n"


def test_tensors_without_pytorch_say_what_is_missing(installed):
    code = WITHOUT_TORCH + "\ntry:\n  import addend.torch\nexcept ImportError as error:\n  print(error)"
    said = in_venv(installed, code)
    assert said.startswith("addend.torch needs PyTorch") and said.count("\n") == 1


def test_without_a_build_pip_reports_what_to_run(installed, tmp_path):
    for name in ("pyproject.toml", "setup.py", "README.md"):
        (tmp_path / "python").mkdir(exist_ok=True)
        (tmp_path / "python" / name).write_bytes((ROOT / "python" / name).read_bytes())
    (tmp_path / "python" / "addend").mkdir()
    (tmp_path / "python" / "addend" / "__init__.py").touch()
    (tmp_path / "CMakeLists.txt").write_bytes((ROOT / "CMakeLists.txt").read_bytes())
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--target", tmp_path / "target"]
    result = run([installed[0] / "python3", "-m", "pip", "install", *options, tmp_path / "python"], tmp_path)
    assert result.returncode != 0
    assert "libaddend.so does not exist: run scripts/build first" in result.stdout + result.stderr
