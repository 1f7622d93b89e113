"""The documents agree with the tree: paths, links, flags, variables, metrics, tables, and the README's program with its output.

docs/wire-format.md is compared by test_wire_format.py, the tables of docs/security.md by test_security_tables.py, docs/metrics.md by
tests/cluster/test_metrics.py.
"""
import functools
import hashlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.tidy import test_tidy

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
BIN_DIR = pathlib.Path(os.environ.get("ADDEND_BIN_DIR", ROOT / "build" / "bin"))
TOP_FOLDERS = "bench|cmake|deploy|docs|examples|lib|proto|python|scripts|services|spec|tests|tools"


def name_of(document):
    return document.relative_to(ROOT).as_posix()


def text_of(document):
    return document.read_text()


@pytest.fixture(params=DOCUMENTS, ids=name_of)
def document(request):
    return request.param


def table(path, heading, columns):
    """The rows of the first table under a heading, as lists of cells."""
    section = re.split(rf"^#+ {re.escape(heading)}\n", (ROOT / path).read_text(), flags=re.M)
    assert len(section) == 2, f"{path} has {len(section) - 1} headings '{heading}'"
    found = re.search(r"^\|[^\n]*\n\|[-:| ]*\n((?:\|[^\n]*\n)+)", section[1], re.M)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
    assert all(len(row) == columns for row in rows), f"{path}, '{heading}': a row without {columns} columns"
    return rows


# ---- paths, links, names ----


def paths_in(text):
    """Every path below a top-level folder that a text names, but for placeholders as in tests/fuzz/NAME_fuzz.cc."""
    found = re.findall(rf"(?<![\w/.:-])((?:{TOP_FOLDERS})/[\w./*-]*[\w*/])", text)
    return [path for path in found if not re.search(r"(?:^|/|_)(?:NAME|TARGET|FILE|NNNN)\b|NAME_", path)]


def exists(path):
    return bool(list(ROOT.glob(path.rstrip("/")))) if "*" in path else (ROOT / path).exists()


def test_every_path_in_a_document_exists(document):
    missing = [path for path in paths_in(text_of(document)) if not exists(path)]
    assert not missing, f"{name_of(document)} names paths that do not exist: {missing}"


def anchors(path):
    """The anchors that GitHub makes of the headings of a document."""
    lines = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", lines, re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


def test_every_link_of_a_document_leads_somewhere(document):
    text = re.sub(r"```.*?```", "", text_of(document), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{name_of(document)} links to {path}, which does not exist"
        assert not anchor or anchor in anchors(file), f"{name_of(document)} links to {target}, which has no such heading"


def test_every_link_into_a_document_from_elsewhere_leads_to_a_heading():
    """Runbook addresses of alerts, above all."""
    files = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "services").rglob("*.*"), *(ROOT / "tools").rglob("*.cc")]
    found = {match for path in files if path.is_file() and path.suffix in (".yaml", ".cc", ".h", ".js", ".html")
             for match in re.findall(r"/(docs/[\w.-]+\.md)#([\w-]+)", path.read_text())}
    assert len(found) >= 15
    wrong = [f"{path}#{anchor}" for path, anchor in sorted(found) if anchor not in anchors(ROOT / path)]
    assert not wrong, wrong


def test_every_test_that_a_document_names_exists(document):
    for path, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text_of(document)):
        assert f"def {test}(" in (ROOT / path).read_text(), f"{name_of(document)} names {path}::{test}"


# ---- flags, variables, metrics ----


# Flags of programs that are not part of Addend.
FOREIGN_FLAGS = {
    "apt, dpkg": set(),
    "cmake, ctest": {"build", "preset", "target", "test-dir"},
    "cosign": {"insecure-ignore-tlog", "signature", "type"},
    "etcd": {"max-request-bytes"},
    "kustomize": {"enable-alpha-plugins", "enable-exec"},
    "helm, kubectl": {"create-namespace", "from-literal", "logs", "namespace", "previous", "set", "values"},
    "lldptool, mlnx_qos": {"trust"},
    "pip, venv": {"no-build-isolation", "system-site-packages"},
    "podman, docker": {"from", "memory", "mount", "name", "network", "rm"},
    "sha256sum": {"check"},
    "skopeo": {"format", "preserve-digests"},
    "srun": {"mpi", "ntasks", "ntasks-per-node"},
    "torchrun": {"nnodes", "nproc_per_node", "redirects", "tee"},
    "every Abseil program": {"help", "print-config", "version"},
    "an example of a name": {"some-flag"},
}


def sources(*suffixes):
    for folder in TOP_FOLDERS.split("|"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in suffixes and "node_modules" not in path.parts and not re.search(r"/build[\w-]*/", path.as_posix()):
                yield path


def declared_flags():
    """Without the dashes, as Abseil flags, argparse's and pytest's options, and the cases of shell scripts declare them."""
    flags = set()
    for path in sources(".cc", ".h"):
        flags |= {name.replace("_", "-") for name in re.findall(r"ABSL_FLAG\(\s*(?:[^,()]|\([^()]*\))+,\s*(\w+),", path.read_text())}
    for path in sources(".py", ""):
        text = path.read_text(errors="replace")
        flags |= set(re.findall(r"""(?:add_argument|addoption)\((?:\s*"-\w",)?\s*"--([\w-]+)\"""", text))
        flags |= {name for names in re.findall(r"""add_argument\(((?:"-[\w-]+",\s*)+)""", text) for name in re.findall(r'"--([\w-]+)"', names)}
        flags |= set(re.findall(r"^\s*(?:-\w \| )?--([\w-]+)(?:=\S*)?(?: \| --[\w=-]+)*\)", text, re.M))
    return flags


DECLARED_FLAGS = declared_flags()


def flags_in(text):
    return {flag for flag in re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]*[a-z0-9])", text)}


def test_flags_of_each_kind_are_found():
    assert {"scheduler", "memory-limit", "stall-timeout"} <= DECLARED_FLAGS, "Abseil's"
    assert {"fuzz-seconds", "nodes", "servers"} <= DECLARED_FLAGS, "argparse's and pytest's"
    assert "full" in DECLARED_FLAGS, "a shell script's"


def test_every_flag_in_a_document_exists(document):
    unknown = flags_in(text_of(document)) - DECLARED_FLAGS - set().union(*FOREIGN_FLAGS.values())
    assert not unknown, f"{name_of(document)} names flags that nothing declares: {sorted(unknown)}"


def test_every_foreign_flag_is_in_use():
    used = set().union(*(flags_in(text_of(path)) for path in DOCUMENTS))
    assert not set().union(*FOREIGN_FLAGS.values()) - used


@functools.cache
def code():
    paths = [ROOT / "CMakeLists.txt", *sources(".cc", ".h", ".py", ".yaml", "", ".cmake", ".txt", ".sh")]
    return "\n".join(path.read_text(errors="replace") for path in paths)


def test_every_environment_variable_in_a_document_exists(document):
    named = set(re.findall(r"\bADDEND_[A-Z0-9_]*[A-Z0-9]\b", text_of(document))) - {"ADDEND_SOME_FLAG"}
    unknown = {name for name in named
               if name.removeprefix("ADDEND_").lower().replace("_", "-") not in DECLARED_FLAGS and not re.search(rf"\b{name}\b", code())}
    assert not unknown, f"{name_of(document)} names variables that nothing reads: {sorted(unknown)}"


def test_every_metric_in_a_document_exists(document):
    metrics = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.M))
    functions = set(re.findall(r"\b(addend_\w+)\(", (ROOT / "lib/client/addend.h").read_text()))
    types = set(re.findall(r"\b(addend_code|addend_context|addend_tensor)\b", (ROOT / "lib/client/addend.h").read_text()))
    named = set(re.findall(r"`(addend_[a-z0-9_]+)(?=[`{( ])", text_of(document)))
    histograms = {name + suffix for name in metrics for suffix in ("_bucket", "_sum", "_count")}
    assert not named - metrics - histograms - functions - types, f"{name_of(document)} names {sorted(named - metrics - histograms - functions - types)}"


# ---- tables ----


def test_the_table_of_folders_has_the_edges_that_tidy_allows():
    everything = {folder for folder in test_tidy.MAY_INCLUDE if folder.startswith("lib/")} - {"lib/client"}
    described = {}
    for folder, _, may in table("docs/architecture.md", "Folders", 3):
        folder = folder.strip("`")
        if folder == "lib/client/cuda":  # a folder of lib/client
            continue
        allowed = set()
        for word in re.findall(r"[a-z]+", may):
            allowed |= everything if word == "all" else {word if word == "proto" else f"lib/{word}"}
        described[folder] = allowed
    assert set(described) == set(test_tidy.MAY_INCLUDE)
    for folder, allowed in test_tidy.MAY_INCLUDE.items():
        assert described[folder] == allowed - {folder}, f"docs/architecture.md, row {folder}"


def test_folders_are_in_the_order_of_dependency():
    seen = set()
    for folder, *_ in table("docs/architecture.md", "Folders", 3):
        folder = folder.strip("`")
        missing = {target for target in test_tidy.MAY_INCLUDE.get(folder, set()) if target.startswith("lib/")} - seen - {folder}
        assert not missing, f"{folder} comes before {sorted(missing)}"
        seen.add(folder)


def test_every_folder_with_sources_is_described():
    described = (ROOT / "docs/architecture.md").read_text()
    folders = [path for top in ("lib", "services", "tools") for path in sorted((ROOT / top).iterdir()) if path.is_dir() and any(path.glob("*.cc"))]
    missing = [path.relative_to(ROOT).as_posix() for path in folders if f"| `{path.relative_to(ROOT).as_posix()}` |" not in described]
    assert not missing


def test_the_table_of_ports_has_the_defaults_of_the_flags():
    for binary, _, grpc, data, http, health in table("docs/operations.md", "Processes and ports", 6):
        folder = {"addend-scheduler": "scheduler", "addend-summation": "summation", "addend-agent": "worker_agent"}[binary.strip("`")]
        options = (ROOT / "services" / folder / "options.cc").read_text()
        ports = dict(re.findall(r"ABSL_FLAG\(addend::(?:Optional)?HostPort, (\w+),.*?(\d+)}", options, re.S))
        assert (grpc, data, http, health) == (ports["listen"], ports.get("data_listen", "–"), ports["http"], ports["health_listen"]), binary


def test_the_table_of_times_has_the_defaults_of_the_flags():
    rows = table("docs/operations.md", "Times", 4)
    code_of_options = "\n".join(path.read_text() for path in sources(".cc") if path.name.endswith("options.cc"))
    defaults = dict(re.findall(r"ABSL_FLAG\(\s*absl::Duration, (\w+), absl::Seconds\((\d+)\)", code_of_options))
    assert len(rows) >= 4
    for flag, _, default, _ in rows:
        name = re.search(r"`--([\w-]+)`", flag)[1].replace("-", "_")
        assert default == f"{defaults[name]} s", flag


def test_the_statuses_of_python_errors_are_those_of_the_document():
    sentence = re.search(r"^Python raises .*$", (ROOT / "docs/operations.md").read_text(), re.M)[0]
    errors = (ROOT / "python/addend/_errors.py").read_text()
    values = dict(re.findall(r"^([A-Z_]+) = (\d+)$", errors, re.M))
    named = dict(re.findall(r"`(\w+Error)` \((\d+)\)", sentence))
    assert named == {"PeerLostError": values["PEER_LOST"], "MismatchError": values["MISMATCH"], "StalledError": values["STALLED"]}


def test_the_table_of_releases_has_the_versions_of_this_release():
    header = (ROOT / "lib/base/version.h").read_text()
    ranges = {name: (int(oldest), int(newest)) for name, oldest, newest in re.findall(r"constexpr VersionRange (k\w+)\{(\d+), (\d+)\};", header)}
    columns = ("kControl", "kFrame", "kRdma", "kSharedMemory", "kTrainers", "kStore")
    assert set(columns) == {name for name in ranges if not name.endswith("Unnamed")}, "a protocol without a column"
    release = re.search(r"project\(\w+ VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    rows = {row[0].split()[0]: row[1:] for row in table("docs/releasing.md", "Protocol versions of each release", 7)}
    spoken = [cell.split(" to ") for cell in rows[release]]
    assert [(int(cell[0]), int(cell[-1])) for cell in spoken] == [ranges[name] for name in columns]


def test_the_change_log_begins_with_this_release():
    release = re.search(r"project\(\w+ VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == release


def test_every_decision_is_listed_and_complete():
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text())
    files = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert listed == files
    assert [name[:4] for name in files] == [f"{number:04}" for number in range(1, len(files) + 1)]
    for name in files:
        text = (ROOT / "docs/decisions" / name).read_text()
        sections = re.findall(r"^## (.*)$", text, re.M)
        assert sections == ["Context", "Decision", "Consequences", "Alternatives"], name
        assert text.startswith(f"# {int(name[:4])}. "), name


# ---- the README's first screen ----


def digest_by_the_specification(ranks):
    """Of the average that the README's program prints: float32, in the order of the nodes, one division."""
    numpy = pytest.importorskip("numpy")
    numbers = numpy.arange(1, 1_000_001, dtype=numpy.float32)
    total = numpy.float32(1) / numbers
    for rank in range(1, ranks):
        total += numpy.float32(1 + rank) / numbers
    return hashlib.sha256((total / numpy.float32(ranks)).tobytes()).hexdigest()[:16]


def readme_runs():
    """[(arguments of `addend run`, output)] of the README's console block."""
    block = re.search(r"```console\n(.*?)```", README, re.S)[1]
    return re.findall(r"^\$ /usr/bin/python3 -m addend run (.*?) examples/same_bits\.py\n(.*)$", block, re.M)


def test_the_program_of_the_readme_is_the_example():
    program = re.search(r"```python\n(.*?)```", README, re.S)[1]
    assert program == (ROOT / "examples/same_bits.py").read_text()
    assert len(program.splitlines()) <= 15


def test_the_output_of_the_readme_is_the_sum_in_node_order():
    runs = readme_runs()
    assert len(runs) >= 3 and len({output for _, output in runs}) == 1
    assert runs[0][1] == f"[0] 4 ranks, bits {digest_by_the_specification(4)}"


def test_the_output_of_the_readme_is_that_of_its_commands():
    if not (BIN_DIR / "addend-agent").exists():
        pytest.skip("no binaries: run scripts/build")
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), PYTHONDONTWRITEBYTECODE="1", ADDEND_BIN_DIR=str(BIN_DIR))
    arguments, output = readme_runs()[-1]
    result = subprocess.run([sys.executable, "-m", "addend", "run", *arguments.split(), "examples/same_bits.py"],
                            capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)
    assert result.stdout.splitlines() == [output], result.stderr


def test_the_plan_of_the_readme_is_the_output_of_its_command():
    if not (BIN_DIR / "addendctl").exists():
        pytest.skip("no binaries: run scripts/build")
    command, output = re.search(r"```console\n\$ build/bin/addendctl (plan [^\n]*)\n(.*?)```", README, re.S).groups()
    assert subprocess.run([BIN_DIR / "addendctl", *command.split()], capture_output=True, text=True, check=True).stdout == output


def test_the_chart_of_the_readme_is_drawn_from_the_measured_table():
    drawn = subprocess.run([sys.executable, ROOT / "docs/speedup.py", "--print"], capture_output=True, text=True, check=True).stdout
    assert drawn == (ROOT / "docs/speedup.svg").read_text(), "run docs/speedup.py"
    assert "(docs/speedup.svg)" in README


def objects():
    """(object, folder) of every table under 'The objects' of docs/architecture.md."""
    section = re.search(r"^## The objects\n(.*?)^---$", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)[1]
    for part in re.split(r"^\*\*", section, flags=re.M)[1:]:
        folder = re.search(r"\(`([\w/]+)`", part)[1]
        for cell in re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", part, re.M):
            for name in re.findall(r"`([A-Z]\w+)`", cell):
                yield name, folder
        for name in re.findall(r"`((?:Host|Device)Source)`", part):
            yield name, folder


def test_every_object_of_the_architecture_is_declared_in_its_folder():
    found = list(objects())
    assert len(found) > 25
    missing = [f"{name} in {folder}" for name, folder in found
               if not any(re.search(rf"^(?:class|struct) (?:\w+\(?\w*\)? )?{name}\b[^;]*$", path.read_text(), re.M) for path in (ROOT / folder).glob("*.h"))]
    assert not missing, f"docs/architecture.md, 'The objects': {missing}"
