"""Programs with all the libraries that they need, for machines that have others or older ones.

Each program lies in a folder of libraries beside its copy of the loader, and a script of its name
starts it there. Of a machine it needs the kernel and a shell.
"""

import pathlib
import re
import shutil
import subprocess

_START = """\
#!/bin/sh
# Starts the program with the libraries beside it.
here=$(dirname -- "$(readlink -f -- "$0")")/lib
exec "$here/{loader}" --argv0 "$0" --library-path "$here" "$here/{program}" "$@"
"""


def libraries_of(program):
    """The libraries of a program, by the names under which it asks for them; and its loader."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r"(\S+) => not found", listed):
        raise SystemExit("%s cannot run here: it misses %s" % (program, ", ".join(missing)))
    found = {name: pathlib.Path(path) for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.M)}
    (loader,) = re.findall(r"^\s*(/\S*ld-linux\S*)", listed, re.M)
    return found, pathlib.Path(loader)


def copyright_of(library):
    """(package, its notice) of a library of Debian's; None if no package has it."""
    for path in (library, library.resolve(), pathlib.Path("/usr") / library.relative_to("/")):
        owner = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True)
        if owner.returncode == 0:
            package = owner.stdout.split(":")[0]
            return package, pathlib.Path("/usr/share/doc", package, "copyright")
    return None


def bundle(programs, folder):
    """Puts the programs into `folder`, and what they need into its folder lib."""
    inside = folder / "lib"
    (inside / "licenses").mkdir(parents=True, exist_ok=True)
    copied = {}
    for program in programs:
        found, loader = libraries_of(program)
        copied.update(found)
        copied[loader.name] = loader
        shutil.copy2(program, inside)
        script = folder / program.name
        script.write_text(_START.format(loader=loader.name, program=program.name), encoding="utf-8")
        script.chmod(0o755)
    for name, path in copied.items():
        shutil.copy(path, inside / name)
        (inside / name).chmod(0o755)
        notice = copyright_of(path)
        if notice is None or not notice[1].exists():
            raise SystemExit("%s belongs to no package with a copyright notice, and cannot be passed on" % path)
        shutil.copy(notice[1], inside / "licenses" / notice[0])
