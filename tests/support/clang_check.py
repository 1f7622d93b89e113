"""Lets clang check every source of lib/, services/, tools/ and bench/: warnings and thread-safety analysis as errors.

It generates no code, so it takes a fraction of a build. Sources that clang has already compiled are skipped, since clang warns as it
compiles: clang_check.py COMPILE_COMMANDS JOBS.
"""
import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import sys

FOLDERS = ("/lib/", "/services/", "/tools/", "/bench/")


def compiled(entry):
    words = shlex.split(entry["command"])
    return any("clang" in word for word in words[:2]) and (pathlib.Path(entry["directory"]) / words[words.index("-o") + 1]).exists()


def command_of(entry):
    """The entry's compile command as a clang syntax check."""
    words = shlex.split(entry["command"])
    flags = [word for word in words if word.startswith(("-I", "-D", "-std", "-f", "-W", "-m"))]
    for position, word in enumerate(words):
        if word == "-isystem":
            flags += words[position:position + 2]
    return ["clang++-14", "-fsyntax-only", "-Wthread-safety", "-Werror", *flags, entry["file"]]


def check(entry):
    result = subprocess.run(command_of(entry), cwd=entry["directory"], capture_output=True, text=True)
    return result.returncode, result.stderr


def main(database, jobs):
    with open(database) as file:
        entries = [e for e in json.load(file) if any(f in e["file"] for f in FOLDERS) and "/tests/" not in e["file"]]
    entries = [e for e in entries if not e["file"].endswith(".cu")]  # nvcc's flags, and headers of CUDA's newest version
    if not entries:
        print("no source to check in", database)
        return 1
    entries = [entry for entry in entries if not compiled(entry)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
        for entry, (status, text) in zip(entries, pool.map(check, entries)):
            if status:
                failed += 1
                print(f"clang refuses {entry['file']}:\n{text}")
    print(f"clang checked {len(entries)} sources")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
