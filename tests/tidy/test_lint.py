"""scripts/lint and its runner of clang-tidy: which units check a file, and that a finding fails the run."""
import json
import pathlib
import shutil
import subprocess

import pytest

from tests.support import clang_tidy

ROOT = clang_tidy.ROOT


@pytest.fixture
def build(tmp_path):
    """A build folder whose database has a batch of two sources and a source of its own."""
    batch = tmp_path / "unity_0.cxx"
    batch.write_text("".join(f'#include "{ROOT}/lib/base/{name}.cc"\n' for name in ("clock", "units")))
    entries = [
        {"directory": str(tmp_path), "file": str(file), "command": f"/usr/bin/c++ -I{ROOT} -std=c++20 -o out.o -c {file}"}
        for file in (batch, ROOT / "lib/base/version.cc", ROOT / "tests/unit/x_test.cc")
    ]
    (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
    return tmp_path


def files_of(entries):
    return {entry["file"].removeprefix(f"{ROOT}/") for entry in entries}


def test_all_units_are_batches_and_sources_of_the_product(build):
    assert set(clang_tidy.units(build)) == {str(build / "unity_0.cxx"), str(ROOT / "lib/base/version.cc")}


def test_a_source_is_checked_alone_with_the_flags_of_its_batch(build):
    entries, unreached = clang_tidy.database_of([pathlib.Path("lib/base/clock.cc")], build)
    assert files_of(entries) == {"lib/base/clock.cc"} and not unreached
    assert entries[0]["command"].endswith(f"-std=c++20 -o out.o -c {ROOT}/lib/base/clock.cc")


def test_a_header_is_checked_through_a_source_that_includes_it(build):
    entries, unreached = clang_tidy.database_of([pathlib.Path("lib/base/version.h")], build)
    assert files_of(entries) == {"lib/base/version.cc"} and not unreached
    assert clang_tidy.database_of([pathlib.Path("lib/base/no_such.cc")], build)[1]


TWICE = """/r/lib/a.h:3:5: warning: use of moved value [bugprone-use-after-move]
  f(x);
/r/lib/a.h:2:5: note: moved here
/r/lib/b.cc:9:1: warning: other [misc-x,misc-y]
3 warnings generated.
"""


def test_findings_keep_their_notes():
    findings = list(clang_tidy.findings_in(TWICE))
    assert [file for file, _ in findings] == ["/r/lib/a.h", "/r/lib/b.cc"]
    assert findings[0][1].endswith("note: moved here")


@pytest.mark.skipif(not shutil.which("clang-tidy-14"), reason="clang-tidy-14 is not installed: scripts/lint installs it")
def test_a_finding_is_reported_once_and_a_failure_of_clang_tidy_is_one(tmp_path):
    shutil.copy(ROOT / ".clang-tidy", tmp_path)
    source, missing = tmp_path / "a.cc", tmp_path / "b.cc"
    source.write_text("double Mean(int sum, int count) { return sum / count; }\n")
    missing.write_text('#include "no_such_header.h"\n')

    def entry(file):
        return {"directory": str(tmp_path), "file": str(file), "command": f"/usr/bin/c++ -std=c++20 -c {file}"}
    found = clang_tidy.check([entry(source), entry(source)], 1)
    assert len([finding for finding in found if "bugprone-integer-division" in finding]) == 1, found
    assert clang_tidy.check([entry(missing)], 1), "a source that clang cannot read has to fail the run"


def test_lint_refuses_arguments_that_it_does_not_know():
    for arguments in (["--every"], ["--all", "lib/base/clock.cc"], ["--base"]):
        result = subprocess.run([ROOT / "scripts/lint", *arguments], capture_output=True, text=True)
        assert result.returncode == 64 and result.stderr, arguments


def test_lint_fails_for_a_finding_in_python(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os\n")
    result = subprocess.run([ROOT / "scripts/lint", program], capture_output=True, text=True)
    assert result.returncode == 1 and "F401" in result.stdout, result.stdout + result.stderr
