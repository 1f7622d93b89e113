"""docs/wire-format.md agrees with the code. The table of releases is compared by test_docs.py."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FRAME = (ROOT / "lib/wire/frame.h").read_text()
VERSIONS = (ROOT / "lib/base/version.h").read_text()
WIRE_FORMAT = (ROOT / "docs/wire-format.md").read_text()


def newest(name):
    return int(re.search(rf"VersionRange {name}\{{\d+, (\d+)\}};", VERSIONS)[1])


def screaming(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def rows(heading):
    """The rows of the first table behind `heading`, without their outer bars."""
    text = WIRE_FORMAT.split(heading, 1)[1]
    table = re.search(r"\n\|[^\n]*\n\|[-:| ]*\n((?:\|[^\n]*\n)+)", text)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_frame_version_in_the_title_and_the_table_is_the_newest():
    assert f"wire format, version {newest('kFrame')}\n" in WIRE_FORMAT
    version = next(row for row in rows("# The data path") if row[2] == "version")
    assert version[3].startswith(f"{newest('kFrame')}.")


def test_every_frame_type_has_its_row():
    body = re.search(r"enum class FrameType[^{]*\{(.*?)\n\};", FRAME, re.S)[1]
    body = re.sub(r"//[^\n]*", "", body)
    types = {(int(value), screaming(name)) for name, value in re.findall(r"k(\w+)\s*=\s*(\d+)", body)}
    assert {(int(row[0]), row[1]) for row in rows("## Types")} == types


def test_every_flag_is_named():
    flags = {int(value) for value in re.findall(r"constexpr uint16_t kFlag\w+ = (\d+);", FRAME)}
    row = next(row for row in rows("# The data path") if row[2] == "flags")
    assert {int(number) for number in re.findall(r"(?:^|, )(\d+) ", row[3])} == flags


def test_the_fields_fill_the_header():
    at = 0
    for offset, size, *_ in rows("# The data path"):
        assert int(offset) == at
        at += int(size)
    assert at == int(re.search(r"kFrameHeaderBytes = (\d+)", FRAME)[1])


def test_the_rdma_version_is_the_newest():
    assert f"`lib/transport/rdma/message.h`, version {newest('kRdma')}:" in WIRE_FORMAT


def test_the_version_of_shared_memory_is_the_newest():
    version = newest("kSharedMemory")
    assert f"`lib/transport/shm/record.h`, version {version}," in WIRE_FORMAT and f"`addend-shm{version}-INCARNATION-SHARD`" in WIRE_FORMAT
