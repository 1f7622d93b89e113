"""The table of failures in lib/base/failure.h agrees with the trainers' errors and with the documents."""
import importlib.util
import pathlib
import re

from tests.tidy.test_docs import table

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROW = re.compile(r'\{FailureKind::(k\w+),\s*"(\w+)",\s*"(\w+)",\s*(\d+), absl::StatusCode::k\w+,\s*(\d+), "(\w+)"\}')


def failures():
    """(kind, name, cause, exit status, addend_code, Python class) of each row."""
    header = (ROOT / "lib/base/failure.h").read_text()
    rows = [(kind, name, cause, int(status), int(code), python) for kind, name, cause, status, code, python in ROW.findall(header)]
    kinds = re.search(r"enum class FailureKind : uint8_t \{(.*?)\}", header, re.S)[1]
    assert [row[0] for row in rows] == re.findall(r"^\s*(k\w+)", kinds, re.M), "the table has a row for each kind, in their order"
    return rows


def errors():
    spec = importlib.util.spec_from_file_location("errors_of_addend", ROOT / "python/addend/_errors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_python_raises_the_class_of_the_table():
    module = errors()
    for kind, _, _, _, code, python in failures():
        assert type(module.make_error(code, "why")).__name__ == python, kind


def test_python_and_the_c_abi_have_the_same_numbers():
    header = (ROOT / "lib/client/addend.h").read_text()
    codes = {name: int(number) for name, number in re.findall(r"^\s*ADDEND_(?:ERROR_)?(\w+) = (\d+)", re.search(r"typedef enum \{(.*?)\} addend_code;", header, re.S)[1], re.M)}
    module = errors()
    assert codes == {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}
    assert {code for *_, code, _ in failures()} <= set(codes.values())


def test_documented_exit_statuses_are_those_of_the_table():
    documented = {int(row[0]) for row in table("docs/operations.md", "Exit statuses", 3)}
    assert documented == {status for _, _, _, status, _, _ in failures()} | {0, 1}, "1 is addendctl doctor's"


def test_names_are_those_of_the_protocol():
    scheduler = (ROOT / "proto/addend/v1/scheduler.proto").read_text()
    for field in ("failed_kind = 11", "string kind = 4"):
        line = next(line for line in scheduler.splitlines() if field in line)
        assert set(re.findall(r'"(\w+)"', line)) <= {name for _, name, *_ in failures()}, field
