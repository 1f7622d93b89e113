"""docs/security.md has two tables, of the effects of each message and of the bound of each value: they name everything that the definitions have, and nothing else.

The definitions are read: the services and messages of proto/, frames, flags and payloads in lib/wire and lib/auth, RDMA's messages, trainers' messages in
lib/client/ipc.h. A new call, frame, message, flag or field without a row fails here, and so does a bound that the code does not have.
"""
import pathlib
import re
import subprocess

import pytest

from google.protobuf import descriptor_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
PROTOS = sorted(path.relative_to(ROOT) for path in (ROOT / "proto").rglob("*.proto"))
HEADERS = [path for folder in ("lib", "services", "tools") for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".h", ".cc")]


def section(title):
    """The rows of the table under a heading, as lists of cells."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.M | re.S)
    assert found, f"docs/security.md has no heading '{title}'"
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    assert len(lines) > 2, f"no table under '{title}'"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(title):
    """The names that the first column has between backquotes, in the order of the table."""
    return [name for row in section(title) for name in re.findall(r"`([^`]+)`", row[0])]


def same(title, wanted):
    names = named(title)
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"more than one row of '{title}' is about {sorted(twice)}"
    missing, unknown = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
    assert not missing, f"docs/security.md, '{title}', has no row for {missing}: say what it may cause, or what bounds it and who refuses it"
    assert not unknown, f"docs/security.md, '{title}', has rows for what does not exist: {unknown}"


@pytest.fixture(scope="module")
def definitions(tmp_path_factory):
    """(services, messages by full name) of the proto files."""
    out = tmp_path_factory.mktemp("proto") / "all"
    subprocess.run(["protoc", f"--proto_path={ROOT}", "--include_imports", f"--descriptor_set_out={out}",
                    *map(str, PROTOS)], check=True)
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    messages = {}

    def add(prefix, found):
        for message in found:
            name = f"{prefix}.{message.name}"
            messages[name] = message
            add(name, message.nested_type)
    for file in files:
        add(f".{file.package}", file.message_type)
    return [service for file in files for service in file.service if file.package == "addend.v1"], messages


def request_fields(definitions):
    """Every field that a caller can fill, as "Message.field": of all messages that requests contain, at any depth."""
    services, messages = definitions
    waiting, seen, fields = [method.input_type for service in services for method in service.method], set(), []
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for field in messages[name].field:
            if field.type == field.TYPE_MESSAGE:
                waiting.append(field.type_name)
            fields.append(f"{name.removeprefix('.addend.v1.')}.{field.name}")
    return fields


def source(path):
    return re.sub(r"//.*", "", (ROOT / path).read_text())


def enumerators(path, enum):
    body = re.search(rf"enum class {enum} : \w+ {{(.*?)}};", source(path), re.S)[1]
    found = [re.fullmatch(r"\s*k(\w+)(?:\s*=\s*\d+)?\s*", part) for part in body.split(",") if part.strip()]
    assert all(found), f"{path}: an enumerator of {enum} that this test cannot read"
    return [match[1] for match in found]


def members(path, struct):
    body = re.search(rf"struct {struct} {{(.*?)\n}};", source(path), re.S)[1]
    statements = [part for part in body.split(";") if part.strip()]
    found = [re.fullmatch(r"\s*(?:const )?[\w:]+(?:<[^;]*>)? (\w+)(?:\[\w+\])?(?: = [^;]+|{[^;]*})?", part, re.S) for part in statements]
    assert all(found), f"{path}: {struct} has a member that this test cannot read"
    return [match[1] for match in found]


def flags(path):
    return re.findall(r"constexpr uint16_t kFlag(\w+) = \d+;", source(path))


def frame_name(enumerator):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enumerator).upper()


def test_every_call_has_a_row_that_says_what_it_may_cause(definitions):
    same("Calls", [f"{service.name}.{method.name}" for service in definitions[0] for method in service.method])


def test_every_frame_has_a_row_that_says_what_it_may_cause():
    same("Frames", [frame_name(one) for one in enumerators("lib/wire/frame.h", "FrameType")])


def test_every_message_of_a_trainer_has_a_row_that_says_what_it_may_cause():
    same("Trainers' messages", ["k" + one for one in enumerators("lib/client/ipc.h", "Type")])


def test_every_field_of_a_call_has_a_bound(definitions):
    same("Fields of calls", request_fields(definitions))


def test_every_field_and_flag_of_a_frame_has_a_bound():
    wanted = ["flags: " + frame_name(flag) for flag in flags("lib/wire/frame.h")]
    same("Fields of frames", [*members("lib/wire/frame.h", "FrameHeader"), *wanted])


def test_every_value_in_the_payload_of_a_control_frame_has_a_bound():
    opening, stamp = members("lib/auth/link_proof.h", "Opening"), members("lib/wire/stamp.h", "Stamp")
    same("Payloads of frames", [*(f"HELLO.{name}" for name in opening), "CHALLENGE.nonce", "PROOF.proof", *(f"STAMP.{name}" for name in stamp), "GOAWAY.reason"])


def test_every_field_of_a_message_over_rdma_has_a_bound():
    same("Fields of messages over RDMA", members("lib/transport/rdma/message.h", "MessageHead"))


def test_every_field_of_a_record_in_shared_memory_has_a_bound():
    same("Fields of records in shared memory", members("lib/transport/shm/record.h", "Record"))


def test_every_field_and_flag_of_a_trainers_message_has_a_bound():
    wanted = ["flags: " + frame_name(flag) for flag in flags("lib/client/ipc.h")]
    same("Fields of trainers' messages", [*members("lib/client/ipc.h", "Message"), *wanted])


def value_in_the_code(name):
    """Of a constant, which is a number, a product, sum or shift of numbers, or a time in seconds."""
    given = re.compile(rf"\b{name}(?:\s*=\s*([^;]+)|\((\d+)\));")  # std::chrono's in parentheses
    found = {(match[1] or match[2]).strip() for path in HEADERS if (match := given.search(path.read_text()))}
    assert len(found) == 1, f"{name} is defined {len(found)} times: {sorted(found)}"
    expression = re.sub(r"(?:u?int\d+_t|size_t){(\d+)}", r"\1", found.pop())
    expression = re.sub(r"\b(\d[\d']*)(?:[uU]?[lL]{0,2})\b", lambda number: number[1].replace("'", ""), expression)
    durations = re.fullmatch(r"absl::(Seconds|Minutes|Hours|Milliseconds)\((\d+)\)", expression)
    if durations:
        return int(durations[2]) * {"Milliseconds": 0.001, "Seconds": 1, "Minutes": 60, "Hours": 3600}[durations[1]]
    assert re.fullmatch(r"[\d.\s<()*+-]+", expression), f"{name} = {expression}: not a number that this test can read"
    return eval(expression)  # of digits and operators alone


UNITS = {"": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "min": 60, "ms": 0.001}
CITED = re.compile(r"([\d,.]+|2\^\d+) ?(bytes|KiB|MiB|GiB|ms|min|s|)\s?\(`(k\w+)`\)")


def cited_bounds():
    return sorted(set(CITED.findall(PAGE.read_text())))


def test_the_page_cites_bounds_as_the_code_has_them():
    assert len(cited_bounds()) >= 20, "bounds are cited as `NUMBER UNIT (`kConstant`)`"
    for number, unit, name in cited_bounds():
        said = 2 ** int(number[2:]) if number.startswith("2^") else float(number.replace(",", ""))
        assert said * UNITS[unit] == value_in_the_code(name), f"docs/security.md says {number} {unit} for {name}"


def test_every_constant_that_the_page_names_is_cited_with_its_value():
    text = "\n".join(line for line in PAGE.read_text().splitlines() if not line.startswith("| `k"))
    constants = set(re.findall(r"`(k[A-Z]\w+)`", text)) - {"k" + one for one in enumerators("lib/client/ipc.h", "Type")}
    assert constants == {name for _, _, name in cited_bounds()}


def test_what_the_page_says_is_shown_by_tests_that_exist():
    shown = re.findall(r"`((?:tests|bench|lib|services)/[\w/.]+)(?:::(\w+))?`", PAGE.read_text())
    assert len(shown) > 15
    for path, test in shown:
        assert (ROOT / path).exists(), f"docs/security.md names {path}, which does not exist"
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"docs/security.md names {path}::{test}, which does not exist"


def test_every_row_says_something():
    for title in ("Calls", "Frames", "Trainers' messages", "Fields of calls", "Fields of frames", "Payloads of frames", "Fields of messages over RDMA",
                  "Fields of trainers' messages"):
        for row in section(title):
            assert all(row), f"an empty cell in '{title}': {row}"
