"""flake8 has no finding in the Python of the tree; setup.cfg has its settings. (mypy: tests/python/test_types.py.)"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "deploy", "examples", "python", "scripts", "tests", "tools")


def is_python(path):
    if path.suffix or not path.is_file():
        return path.suffix == ".py"
    with open(path, "rb") as file:
        return b"python" in file.readline() and path.stat().st_mode & 0o100 != 0


def sources():
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if is_python(path) and "node_modules" not in path.parts]


def flake8(*paths):
    return subprocess.run([sys.executable, "-m", "flake8", "--config", ROOT / "setup.cfg", *paths], capture_output=True, text=True, cwd=ROOT)


def test_flake8_has_no_finding():
    paths = sources()
    assert {"setup.py", "peers"} <= {path.name for path in paths}, "a folder, or the programs without a suffix, are left out"
    result = flake8(*(path.relative_to(ROOT) for path in paths))
    assert result.returncode == 0, result.stdout + result.stderr


def test_flake8_has_findings_in_a_wrong_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os\n\n\ndef f(x):\n    return y\n")
    found = flake8(program).stdout
    assert "F401" in found and "F821" in found, found
