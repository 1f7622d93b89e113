"""Benchmarks with recorded gradients: bench/contents records them, addend-bench pushes them, bench/optimal and bench/models compare encodings."""
import json
import subprocess

import pytest

from tests.support import netns
from tests.support.cluster import BIN_DIR, PATIENCE, ROOT

numpy = pytest.importorskip("numpy")
pytest.importorskip("torch")

from bench import emulated, recordings  # noqa: E402 (needs numpy)


def record(folder, *profiles, ranks=2):
    command = [ROOT / "bench" / "contents", f"--ranks={ranks}", f"--folder={folder}", "--json", "--profiles", *profiles]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120 * PATIENCE)
    assert result.returncode == 0, result.stderr
    return {line["profile"]: line for line in json.loads(result.stdout)}


def bench(*words):
    return subprocess.run([BIN_DIR / "addend-bench", *words], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)


def checksum(values):
    """addend-bench's: FNV-1a over the words."""
    state = 0xCBF29CE484222325
    for bits in values.view(numpy.uint32).tolist():
        state = (state ^ bits) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def test_profiles_have_the_contents_that_they_stand_for(tmp_path):
    lines = record(tmp_path, *recordings.PROFILES)
    # How many blocks of accumulated gradients fit into 24 bits depends on the order in which a processor adds: 88 to 98 % of them.
    for profile, c, r in [("autocast", 0.50, 0.8), ("accumulated", 0.77, 0.9), ("untied", 0.30, 0.5), ("embedding", 0.05, 0.1), ("convnet", 0.50, 0.8)]:
        assert lines[profile]["c"] == pytest.approx(c, abs=0.02), lines[profile]
        assert c < lines[profile]["r"] <= r + 0.1, lines[profile]
    assert lines["untied"]["results"]["zero"] == pytest.approx(0.4, abs=0.02)
    assert lines["embedding"]["results"]["zero"] == pytest.approx(0.9, abs=0.01)


def test_a_recording_depends_on_the_seed_and_the_rank_alone(tmp_path):
    def first_kilobytes(folder):
        return [(folder / f"rank{rank}.f32").read_bytes()[:4096] for rank in range(2)]
    folders = [recordings.record("convnet", 2, seed, tmp_path / name) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert first_kilobytes(folders[0]) == first_kilobytes(folders[1]) != first_kilobytes(folders[2])
    assert len(set(first_kilobytes(folders[0]))) == 2


def test_a_recording_of_another_version_is_made_again(tmp_path):
    folder = recordings.record("convnet", 1, folder=tmp_path)
    made = (folder / "rank0.f32").read_bytes()
    (folder / "rank0.f32").write_bytes(b"old")
    assert recordings.record("convnet", 1, folder=tmp_path) == folder and (folder / "rank0.f32").read_bytes() == b"old"
    (folder / "header.json").write_text("{}")
    recordings.record("convnet", 1, folder=tmp_path)
    assert (folder / "rank0.f32").read_bytes() == made


def test_blocks_are_of_the_narrowest_kind():
    one, block = numpy.float32(1), numpy.zeros(64, numpy.float32)
    blocks = {"zero": block, "bf16": block + one, "24-bit": block + numpy.float32(1 + 2**-15), "raw": block + numpy.float32(1 + 2**-23)}
    for kind, values in blocks.items():
        assert recordings.kinds(values)[kind] == 1, kind
    assert recordings.kinds(-blocks["zero"])["bf16"] == 1, "-0.0 is kept"
    parts = [recordings.encoded_part(recordings.kinds(values)) for values in blocks.values()]
    assert parts == pytest.approx([0, 0.5, 0.75, 1], abs=0.001)


def test_bench_pushes_the_recorded_gradients(tmp_path):
    """The checksum is that of the sum of the recordings; the second tensor begins at the next block of 64."""
    folder = recordings.record("convnet", 2, folder=tmp_path)
    result = bench("local", "--nodes=2", "--cpu-nodes=1", "--sizes=4KB,2x100KB", "--iterations=2", f"--contents={folder}", "--json")
    assert result.returncode == 0, result.stderr
    total = recordings.sum_of(folder, 2)
    small, two = json.loads(result.stdout)
    assert small["checksum"] == checksum(total[:1000])
    assert two["checksum"] == checksum(numpy.concatenate([total[:25000], total[25024:50024]]))


def test_contents_that_are_not_there_are_refused(tmp_path):
    result = bench("local", "--contents=/nonexistent")
    assert result.returncode == 64 and "--contents=/nonexistent is no file and no folder" in result.stderr
    folder = recordings.record("convnet", 1, folder=tmp_path)
    result = bench("local", "--nodes=2", "--sizes=4KB", f"--contents={folder}")
    assert result.returncode == 64 and "rank1.f32" in result.stderr and "bench/contents --ranks" in result.stderr


def test_different_checksums_end_the_program():
    emulated.check_same_bits("bench/optimal", [{"wire_encoding": "raw", "checksum": "1"}, {"wire_encoding": "auto", "checksum": "1"}])
    with pytest.raises(SystemExit, match="bench/optimal: the checksums differ: auto 2, raw 1"):
        emulated.check_same_bits("bench/optimal", [{"wire_encoding": "raw", "checksum": "1"}, {"wire_encoding": "auto", "checksum": "2"}])


@pytest.mark.parametrize("command", [
    ["optimal", "--bytes=2000000", "--nodes=2", "--cpu-servers=1", "--rounds=2", "--peer=none", "--contents=untied"],
    pytest.param(["models", "--models=resnet50", "--nodes=2", "--cpu-servers=1", "--mbit=2000", "--compute=0.1", "--iterations=1",
                  "--contents=autocast"], marks=pytest.mark.full),
])
def test_benchmarks_on_emulated_machines_name_the_contents(command):
    if reason := netns.unavailable():
        pytest.skip(reason)
    result = subprocess.run([ROOT / "bench" / command[0], *command[1:], "--json"], capture_output=True, text=True, timeout=120 * PATIENCE)
    assert result.returncode == 0, result.stderr
    line, = json.loads(result.stdout)
    assert line["contents"] == {"optimal": "untied", "models": "convnet"}[command[0]] and line["wire_encoding"] is None
    assert len(line["checksum"]) == 16
    assert command[0] == "optimal" or 1 < line["ideal_over_bound"] < 1.1
