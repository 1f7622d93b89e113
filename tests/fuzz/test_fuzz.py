"""Runs each fuzz target for a while, starting from its corpus; and proves that a target finds a planted fault.

Needs the targets: cmake --preset asan && cmake --build --preset asan --target fuzz_targets. CONTRIBUTING.md describes how to handle a finding.
"""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/fuzz"
BUILD = ROOT / "build-asan"
PLANTED = ROOT / "build-asan-faults"
JOBS = os.environ.get("ADDEND_JOBS", str(os.cpu_count()))
TARGETS = sorted(path.name.removesuffix("_fuzz.cc") for path in HERE.glob("*_fuzz.cc"))
# The most bytes of an input: enough for the target's features, and few enough to be fast.
MAX_LEN = {"admission_review": 2000, "agent_link": 600, "block_codec": 3000, "frame_decoder": 600, "handshake": 600, "shm_link": 600,
           "trainer_messages": 600, "topology": 6000, "store": 6000, "grpc_handlers": 6000}
# Time limit for an input. A topology may take 10 s of processor time (lib/intranode/read_topology.cc), while other targets run.
TIMEOUT_S = 20
STATISTICS = re.compile(r"#\d+\s+DONE\s+(.*)|stat::(number_of_executed_units|average_exec_per_sec):\s+(\d+)")


def command_of(target, build=BUILD):
    dictionary = HERE / "dictionaries" / f"{target}.dict"
    return [build / "tests" / f"{target}_fuzz", f"-max_len={MAX_LEN[target]}", *([f"-dict={dictionary}"] if dictionary.exists() else [])]


def run(target, seconds, seed, tmp_path, build=BUILD):
    """Runs the target on a copy of its corpus; its findings stay in the build folder."""
    corpus = tmp_path / "corpus"
    shutil.copytree(HERE / "corpus" / target, corpus)
    findings = build / "findings" / target
    shutil.rmtree(findings, ignore_errors=True)
    findings.mkdir(parents=True)
    command = [*command_of(target, build), f"-seed={seed}", f"-max_total_time={seconds}",
               "-len_control=0", "-entropic=0", "-detect_leaks=0", f"-timeout={TIMEOUT_S}", f"-report_slow_units={TIMEOUT_S}",
               "-rss_limit_mb=3072", "-print_final_stats=1", f"-artifact_prefix={findings}/", corpus]
    print(target, "with seed", seed)
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            cwd=tmp_path, timeout=seconds + 300)
    return result.returncode, result.stdout.decode(errors="replace"), sorted(findings.iterdir())


def describe(target, seed, output, findings):
    lines = [f"the fuzz target {target} has found something with seed {seed}:", *output.splitlines()[-60:]]
    for path in findings:
        lines += [f"the input is {path}; again: {BUILD / 'tests' / target}_fuzz {path}"]
    return "\n".join(lines)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target, tmp_path, fuzz_seconds, fuzz_seed):
    status, output, findings = run(target, fuzz_seconds, fuzz_seed, tmp_path)
    print(*(match[0] for match in STATISTICS.finditer(output)), sep="\n")
    assert status == 0 and not findings, describe(target, fuzz_seed, output, findings)


def test_a_missing_bounds_check_is_found(tmp_path, fuzz_seconds, fuzz_seed):
    """With the planted fault, a bundle of too many frames is read into an array that is too small."""
    for command in (["cmake", "--preset", "asan", "-B", PLANTED, "-DADDEND_PLANTED_FAULT=bundle_frames"],
                    ["cmake", "--build", PLANTED, "-j", JOBS, "--target", "frame_decoder_fuzz"]):
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    status, output, findings = run("frame_decoder", fuzz_seconds, fuzz_seed, tmp_path, PLANTED)
    assert status != 0 and findings, f"the planted fault is not found in {fuzz_seconds} s with seed {fuzz_seed}"
    assert "AddressSanitizer" in output and "FrameReader" in output, output[-3000:]


@pytest.mark.parametrize("target,functions", [
    ("store", ["Placement::PlanSet", "PartitionLedger::EndRelays", "RelayOf"]),
    ("grpc_handlers", ["Placement::PlanSet", "PartitionLedger::EndRelays", "Engine::Reserve", "Engine::Relay"]),
])
def test_the_corpus_reaches_what_the_target_is_for(target, functions):
    """An input whose calls lack a new field, and are all refused, would reach no plan."""
    command = [*command_of(target), "-runs=0", "-print_coverage=1", HERE / "corpus" / target]
    report = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120).stderr
    reached = set(re.findall(r"^COVERED_FUNC: .*? addend::([\w:]+)\(", report, re.MULTILINE))
    assert reached.issuperset(functions), set(functions) - reached


def test_every_target_has_a_corpus():
    for target in TARGETS:
        files = list((HERE / "corpus" / target).iterdir())
        assert len(files) >= 5, f"{target} starts from {len(files)} inputs"
    assert sum(path.stat().st_size for path in (HERE / "corpus").rglob("*") if path.is_file()) < 300_000
