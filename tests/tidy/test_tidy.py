"""The rules of the tree that a machine can check: includes between folders, banned words, format, sizes."""
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("lib", "services", "tools", "bench", "tests")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cc"))

# The folders that a folder may include, besides itself. Edges that are not here do not exist.
MAY_INCLUDE = {
    "lib/base": set(),
    "lib/options": {"lib/base"},
    "lib/telemetry": {"lib/base", "lib/options", "lib/trace"},
    "lib/trace": {"lib/base"},
    "lib/shard": {"lib/base", "lib/telemetry", "lib/trace"},
    "lib/memory": {"lib/base"},
    "lib/auth": {"lib/base"},
    "lib/wire": {"lib/base"},
    "lib/plan": {"lib/base"},
    "lib/network": {"lib/base"},
    "lib/reduce": {"lib/base"},
    "lib/encoding": {"lib/base", "lib/memory", "lib/reduce", "lib/trace", "lib/wire"},
    "lib/intranode": {"lib/base"},
    "lib/transport": {"lib/base", "lib/encoding", "lib/telemetry", "lib/trace", "lib/shard", "lib/memory", "lib/wire"},
    "lib/link": {"lib/auth", "lib/base", "lib/encoding", "lib/memory", "lib/transport", "lib/wire"},
    "lib/summation": {"lib/auth", "lib/base", "lib/encoding", "lib/link", "lib/telemetry", "lib/trace", "lib/shard", "lib/memory", "lib/wire", "lib/reduce", "lib/transport", "proto"},
    "lib/status": {"lib/base", "proto"},
    "lib/rpc": {"lib/base", "lib/options", "lib/telemetry", "proto"},
    "lib/member": {"lib/auth", "lib/base", "lib/options", "lib/rpc", "proto"},
    # What a summation server is, in a process of its own and inside the agent.
    "lib/server": {"lib/auth", "lib/base", "lib/encoding", "lib/options", "lib/rpc", "lib/telemetry", "lib/trace", "lib/transport", "lib/summation", "lib/member", "proto"},
    "lib/client": {"lib/base"},  # and no package: see below
}
MAY_INCLUDE["services/scheduler"] = set(MAY_INCLUDE) - {"lib/client"} | {"proto"}
MAY_INCLUDE["services/summation"] = MAY_INCLUDE["services/scheduler"]
# The agent speaks the protocol that the client library defines.
MAY_INCLUDE["services/worker_agent"] = MAY_INCLUDE["services/scheduler"] | {"lib/client"}
# addendctl doctor tries the NICs in the way the data path does, and addendctl webhook serves HTTPS.
MAY_INCLUDE["tools/addendctl"] = {"lib/auth", "lib/base", "lib/options", "lib/rpc", "lib/memory", "lib/plan", "lib/intranode", "lib/status", "lib/telemetry", "lib/trace",
                                  "lib/transport", "proto"}
# addend-bench-members speaks the control plane.
MAY_INCLUDE["bench"] = {"lib/auth", "lib/base", "lib/options", "lib/member", "lib/plan", "lib/reduce", "lib/rpc", "lib/client", "proto"}

# The scheduler's core: services/scheduler/membership.h has the graph of these objects.
DECIDERS = """
    admission agreements changes decision declarations departures dispatch event_log fleet frame_ranges handover heartbeats history job
    lease lifecycle membership network_file network_map network_view node_list numbering partition_ledger placement planner record registration relays replacement reservations restore roster
    stale_store status_view stragglers tokens updates
""".split()
# A generation of the job on a node: services/worker_agent/node_generation.h has the graph.
NODE = "admission agent_report contribution_source departures device_ generation_state host_ integrity journal local_ranks node_ plan_follower round_runner server stall_watch staging tensor_".split()
# Cores that decide: they know no thread, socket, gRPC or clock.
PURE = ("lib/wire", "lib/plan", "lib/network", "lib/reduce", "lib/intranode/strategy", "lib/intranode/cost_model", "lib/summation", *(f"services/scheduler/{name}" for name in DECIDERS),
        *(f"services/worker_agent/{name}" for name in NODE))
IMPURE_INCLUDE = re.compile(r"<(thread|mutex|condition_variable|chrono|sys/socket\.h|sys/epoll\.h|netinet/\S*|grpcpp/\S*|future)>")

# A word, its home folders, and its replacement elsewhere.
BANNED = [
    (r"\bstd::(mutex|lock_guard|unique_lock|condition_variable)\b", ("lib/base/", "lib/client/", "tests/"), "lib/base/mutex.h"),
    (r"\babsl::Mutex\b", (), "lib/base/mutex.h (ThreadSanitizer does not understand the packaged one)"),
    (r"\bgetenv\b", ("lib/options/", "lib/client/", "services/scheduler/store/kubernetes_api.cc", "tests/"), "an option of the binary"),
    (r"\b(sleep_for|SleepFor|usleep)\b", ("lib/client/", "bench/", "tools/", "tests/"), "a timer or a condition"),
    (r"\bvolatile\b", (), "std::atomic"),
    (r"\.detach\(\)", (), "a thread that somebody joins"),
    (r"\b(FIXME|XXX)\b", (), "doing it, or a sentence in the documentation"),
    (r"\bTODO(?!\(\w+\))", (), "doing it, or TODO(name) with what ends it"),
    (r"#include <(ranges|format)>", (), "what clang 14 has"),
    (r"\busing namespace std\b", (), "names"),
]

# What other headers of one release of the C++ library bring along, and those of the next do not.
HEADER_OF = {
    "algorithm": "all_of any_of clamp copy copy_n count count_if equal fill fill_n find find_if for_each generate is_sorted lower_bound make_heap max max_element min "
                 "min_element minmax mismatch none_of nth_element pop_heap push_heap remove_if reverse rotate search shuffle sort stable_sort transform unique upper_bound",
    "cstdlib": "abort exit getenv",
    "iterator": "advance back_inserter distance make_move_iterator next prev",
    "limits": "numeric_limits",
    "numeric": "accumulate gcd iota lcm partial_sum reduce",
    "random": "mt19937 random_device uniform_int_distribution uniform_real_distribution",
    "thread": "thread this_thread",
}


def relative(path):
    return path.relative_to(ROOT).as_posix()


def folder_of(path):
    """The folder of the dependency table that a path below the root belongs to, or None (tests may include all)."""
    parts = path.split("/")
    if parts[0] in ("bench", "proto"):
        return parts[0]
    return "/".join(parts[:2]) if parts[0] in ("lib", "services", "tools") else None


def code_of(path):
    """The text without comments and string literals, line numbers kept."""
    text = path.read_text()
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
    return pattern.sub(lambda match: "\n" * match[0].count("\n") if match[0][0] == "/" else '""', text)


def includes_of(path):
    return re.findall(r'^\s*#include "([^"]+)"', path.read_text(), re.M)


def test_every_source_folder_is_in_the_dependency_table():
    unknown = {folder_of(relative(path)) for path in SOURCES} - set(MAY_INCLUDE) - {None}
    assert not unknown, f"add these folders to MAY_INCLUDE, with a reason: {sorted(unknown)}"


def test_includes_follow_the_dependency_table():
    wrong = []
    for path in SOURCES:
        folder = folder_of(relative(path))
        if folder not in MAY_INCLUDE:
            continue
        for include in includes_of(path):
            target = folder_of(include)
            if target is not None and target != folder and target not in MAY_INCLUDE[folder]:
                wrong.append(f"{relative(path)} includes {include}")
    assert not wrong, "edges outside the dependency table:\n" + "\n".join(wrong)


def test_the_client_library_stands_on_linux_alone():
    """It is loaded into other people's processes, which bring their own Abseil, protobuf and gRPC."""
    pattern = re.compile(r'#include [<"](absl|google|grpc\w*|spdlog|prometheus|nlohmann|proto)/')
    headers = {ROOT / include for path in SOURCES if relative(path).startswith("lib/client/") for include in includes_of(path)}
    sources = {path for path in SOURCES if relative(path).startswith("lib/client/")} | {h for h in headers if h.exists()}
    wrong = [relative(path) for path in sources if pattern.search(path.read_text())]
    assert not wrong, wrong


def test_the_dependency_table_has_no_cycle():
    done, open_ = set(), []

    def visit(folder):
        assert folder not in open_, f"a cycle: {open_ + [folder]}"
        if folder in done:
            return
        open_.append(folder)
        for target in MAY_INCLUDE.get(folder, ()):
            visit(target)
        done.add(open_.pop())

    for folder in MAY_INCLUDE:
        visit(folder)


def test_includes_are_written_from_the_root():
    wrong = [f"{relative(path)}: {include}" for path in SOURCES for include in includes_of(path)
             if "/" not in include or include.startswith(".")]
    assert not wrong, "\n".join(wrong)


def test_sources_include_the_standard_headers_that_they_use():
    """Themselves, or in the header of the same name. Debian 12 would not notice, Debian 13 has another C++ library."""
    wrong = []
    for path in SOURCES:
        included = set(re.findall(r"^#include <(\w+)>", path.read_text(), re.M))
        for header in (ROOT / include for include in includes_of(path)):
            if header.stem == path.stem and header.exists():
                included |= set(re.findall(r"^#include <(\w+)>", header.read_text(), re.M))
        used = set(re.findall(r"\bstd::(\w+)", code_of(path)))
        wrong += [f"{relative(path)}: <{header}>" for header, names in HEADER_OF.items() if header not in included and used & set(names.split())]
    assert not wrong, "to be included:\n" + "\n".join(wrong)


def test_pure_cores_know_no_thread_socket_or_clock():
    wrong = [f"{relative(path)} includes <{found[1]}>" for path in SOURCES if relative(path).startswith(PURE)
             for found in IMPURE_INCLUDE.finditer(path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("pattern,homes,instead", BANNED, ids=[banned[0] for banned in BANNED])
def test_banned_words_stay_at_home(pattern, homes, instead):
    in_comments = "TODO" in pattern or "FIXME" in pattern
    wrong = []
    for path in SOURCES:
        if relative(path).startswith(homes):
            continue
        for number, line in enumerate((path.read_text() if in_comments else code_of(path)).splitlines(), 1):
            if re.search(pattern, line):
                wrong.append(f"{relative(path)}:{number}: {line.strip()}")
    assert not wrong, f"use {instead} instead:\n" + "\n".join(wrong)


# Files that may read the time of day, which an administrator may set. All other code takes the time from SteadyNow() of lib/base/clock.h.
WALL_CLOCK = re.compile(r"\babsl::Now\b|\bsystem_clock\b|\bCLOCK_REALTIME\b|\bgettimeofday\b|\btime\((nullptr|NULL|0)\)|\btime\.time\(|\bdatetime\b")
MAY_READ_WALL_CLOCK = {
    "lib/base/clock.cc": "SteadyNow() begins with it",
    "lib/client/old_glibc.cc": "an old glibc waits by no other clock",
    "lib/rpc/tls.cc": "certificates end at a date",
    "lib/server/caller_deadline.h": "gRPC tells a call's deadline by it, anew at each question",
    "python/addend/torch/byteps/ops.py": "people read it",
    "services/scheduler/status_page.cc": "people read it",
    "services/scheduler/store/kubernetes_lease.cc": "people read it",
    "tools/addendctl/cluster_facts.cc": "doctor compares it with the scheduler's",
    "tools/addendctl/top_command.cc": "people read it",
}


def test_timeouts_are_not_kept_by_wall_clock_time():
    python = [path for folder in ("python", "tools") for path in (ROOT / folder).rglob("*.py")]
    programs = [path for path in SOURCES if not relative(path).startswith("tests/")]
    reads = {relative(path) for path in programs if WALL_CLOCK.search(code_of(path))}
    reads |= {relative(path) for path in python if WALL_CLOCK.search(path.read_text())}
    assert reads == set(MAY_READ_WALL_CLOCK), f"take SteadyNow() or time.monotonic(), or give a reason: {reads ^ set(MAY_READ_WALL_CLOCK)}"


def test_headers_guard_themselves():
    wrong = [relative(path) for path in SOURCES if path.suffix == ".h" and not path.name.endswith("-inl.h") and "#pragma once" not in path.read_text()
             and not re.search(r"#ifndef (\w+)\n#define \1\n", path.read_text())]
    assert not wrong, wrong


def test_files_stay_readable():
    long = [f"{relative(path)}: {count} lines" for path in SOURCES
            if (count := len(path.read_text().splitlines())) > (800 if relative(path).startswith("tests/") else 500)]
    assert not long, "split these files:\n" + "\n".join(long)


def test_every_source_is_built():
    """A source that no CMakeLists.txt names is dead."""
    lists = {path.parent: path.read_text() for path in ROOT.rglob("CMakeLists.txt") if "build" not in path.parts[len(ROOT.parts)]}
    wrong = []
    for path in SOURCES:
        if path.suffix != ".cc":
            continue
        owners = [parent for parent in path.parents if parent in lists]
        if not any(path.relative_to(owner).as_posix() in lists[owner] for owner in owners):
            wrong.append(relative(path))
    assert not wrong, "\n".join(wrong)


def test_comments_fit_into_the_lines():
    """clang-format leaves comments as they are: it would tear lists and diagrams."""
    wide = [f"{relative(path)}:{number}" for path in SOURCES for number, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > 100 and line.lstrip().startswith(("//", "/*", "* "))]
    assert not wide, "wrap these comments at 100 characters:\n" + "\n".join(wide)


@pytest.mark.skipif(not shutil.which("clang-format-14"), reason="clang-format-14 is not installed: only Debian 12 has it")
def test_format():
    result = subprocess.run(["clang-format-14", "--dry-run", "-Werror", "--ferror-limit=1", *map(str, SOURCES)],
                            capture_output=True, text=True, cwd=ROOT)
    files = sorted({line.split(":")[0].replace(f"{ROOT}/", "") for line in result.stderr.splitlines() if "error:" in line})
    assert result.returncode == 0, "run 'clang-format-14 -i' on:\n" + "\n".join(files)


def test_no_two_types_have_the_same_name():
    """In namespace addend, whichever library or service they belong to: a reader has one meaning for a name, a linker one type."""
    homes = {}
    for path in SOURCES:
        if path.suffix == ".h" and relative(path).startswith(("lib/", "services/")):
            code = code_of(path)
            namespace = re.search(r"^namespace ([\w:]+) {", code, re.M)
            for match in re.finditer(r"^(?:class|struct|enum class) (?:\w+\(\w+\) )?(\w+)\b[^;\n]*\{", code, re.M):
                homes.setdefault((namespace and namespace[1], match[1]), set()).add(relative(path))
    twice = [f"{name}: {', '.join(sorted(paths))}" for (_, name), paths in homes.items() if len(paths) > 1]
    assert len(homes) > 300 and not twice, twice
