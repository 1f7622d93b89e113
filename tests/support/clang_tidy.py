"""Runs clang-tidy with the checks of .clang-tidy and prints each finding once: clang_tidy.py BUILD_FOLDER JOBS [FILE...].

Without files, the whole of lib/, services/, tools/ and bench/ is checked by the units of the build, whose batches of sources parse the common
headers once. With files, each source is checked alone, each header through a source that includes it, and only findings in those files count.
The exit status is 1 if there is a finding.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("lib", "services", "tools", "bench")
FINDING = re.compile(r"^(/[^:]+):(\d+):(\d+): (?:warning|error): .*\[([\w.,-]+)\]$")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def checked(path):
    """Whether a path below the root is of the product's C++; nvcc's sources are not for clang-tidy 14."""
    return path.parts[0] in FOLDERS and path.suffix in (".cc", ".h")


def sources_of(entry):
    """The sources, relative to the root, that an entry of the database compiles: several if it is a batch."""
    file = pathlib.Path(entry["file"])
    files = map(pathlib.Path, INCLUDE.findall(file.read_text())) if file.suffix == ".cxx" else [file]
    return [path.relative_to(ROOT) for path in files if path.is_relative_to(ROOT)]


def units(folder):
    """{entry's file: (entry, sources)} of the product's units in the build folder's database."""
    found = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        sources = [path for path in sources_of(entry) if checked(path)]
        if sources:
            found.setdefault(entry["file"], (entry, sources))
    return found


def command_for(entry, source):
    """The entry's compile command for one of its sources."""
    words = shlex.split(entry["command"])
    return {**entry, "command": shlex.join(str(source) if word == entry["file"] else word for word in words), "file": str(source)}


def database_of(files, folder):
    """(entries that check the files, files that no unit reaches). A header is checked through the first source that includes it."""
    by_source = {source: entry for entry, sources in units(folder).values() for source in sources}
    includes = {source: INCLUDE.findall((ROOT / source).read_text()) for source in by_source}
    chosen, unreached = {}, []
    for file in files:
        same_name = file.with_suffix(".cc")
        source = file if file in by_source else same_name if same_name in by_source else next(
            (source for source in sorted(includes) if file.as_posix() in includes[source]), None)
        if source is None:
            unreached.append(file)
        else:
            chosen[source] = command_for(by_source[source], ROOT / source)
    return list(chosen.values()), unreached


def run_one(file, database):
    result = subprocess.run(["clang-tidy-14", "--quiet", "-p", database, "--extra-arg=-Wno-unknown-warning-option", file], capture_output=True, text=True, cwd=ROOT)
    # Without a finding in the output, a failure is clang-tidy's own: a missing header, a wrong option.
    if result.returncode and not any(map(FINDING.match, result.stdout.splitlines())):
        return f"{file}:1:1: error: clang-tidy failed: {result.stderr.strip()[-2000:]} [clang-tidy]\n"
    return result.stdout


def findings_in(text):
    """Yields (file, text of the finding with its notes)."""
    current = None
    for line in text.splitlines():
        match = FINDING.match(line)
        if match:
            if current:
                yield current
            current = [os.path.normpath(match[1]), line]
        elif current:
            current[1] += "\n" + line
    if current:
        yield current


def check(entries, jobs, only=None):
    """The distinct findings, in files below the root or in `only`."""
    found = {}
    with tempfile.TemporaryDirectory() as database, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        (pathlib.Path(database) / "compile_commands.json").write_text(json.dumps(entries))
        for text in pool.map(lambda entry: run_one(entry["file"], database), entries):
            for file, finding in findings_in(text):
                path = pathlib.Path(file)
                relative = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                if only is None or relative in only or finding.endswith("[clang-tidy]"):
                    found.setdefault(finding.splitlines()[0], finding)
    return [found[key] for key in sorted(found)]


def main(folder, jobs, *names):
    folder = pathlib.Path(folder).resolve()
    if names:
        files = {path for path in map(pathlib.Path, names) if checked(path)}
        entries, unreached = database_of(sorted(files), folder)
        for path in unreached:
            print(f"{path} is in no unit of {folder.name}: configure the build again")
        if unreached:
            return 1
        findings = check(entries, int(jobs), files)
    else:
        # The longest first: the last to end then ends early.
        entries = sorted((entry for entry, _ in units(folder).values()), key=lambda entry: entry["file"])
        entries.sort(key=lambda entry: -sum((ROOT / source).stat().st_size for source in sources_of(entry)))
        findings = check(entries, int(jobs))
    print("".join(f"{finding}\n" for finding in findings).replace(f"{ROOT}/", ""), end="")
    print(f"clang-tidy checked {len(entries)} units: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
