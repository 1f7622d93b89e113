"""Spin explores the models in spec/: no error within the bounds, and an error as soon as one rule is taken out.

Run with -s to see the numbers of states.
"""
import re
import subprocess

import pytest

from tests.support.cluster import ROOT

RECOVERY = ROOT / "spec" / "recovery.pml"
NODE_LOSS = ROOT / "spec" / "node_loss.pml"
LATEST = ROOT / "spec" / "latest.pml"
BOUND = {"ROUNDS": 2}
PATIENCE_S = 600  # for a run that takes at most one minute of a processor that nobody else uses

# What may happen in one run, or less of it. With SLOTS, results are written into the nodes' memory by the servers.
SHORT = [
    {"CHANGES": 2, "EXIT": 1}, {"DEATHS": 2},
    {"CHANGES": 1, "DEATHS": 1}, {"CHANGES": 1, "FALSE_DEATHS": 1}, {"DEATHS": 1, "FALSE_DEATHS": 1},
    {"CHANGES": 1, "RESETS": 1}, {"DEATHS": 1, "RESETS": 1}, {"CHANGES": 1, "RESTARTS": 1}, {"DEATHS": 1, "RESTARTS": 1},
]
FULL = [
    {"CHANGES": 1, "DEATHS": 1, "ROUNDS": 3}, {"CHANGES": 2, "DEATHS": 1, "SLOTS": 1},
    {"CHANGES": 1, "FALSE_DEATHS": 1, "RESETS": 1}, {"CHANGES": 1, "FALSE_DEATHS": 1, "RESETS": 1, "SLOTS": 1},
    {"DEATHS": 1, "RESETS": 1, "RESTARTS": 1},
]
# The rule that is missing, what has to happen to need it, and what is then violated.
MUTATIONS = [
    ("M_MID_ROUND", {"CHANGES": 1}, "held"),
    ("M_DROP_RESULT", {"DEATHS": 1}, "slot"),
    ("M_REPORT_SENT", {"DEATHS": 1}, "held"),
    ("M_LATE_WRITE", {"FALSE_DEATHS": 1, "ROUNDS": 3, "SLOTS": 1}, "r=="),
    ("M_GRANT_EARLY", {"CHANGES": 2, "DEATHS": 1, "SLOTS": 1}, "held"),
    ("M_ANY_VERSION", {"CHANGES": 1, "DEATHS": 1}, "held"),
    ("M_ANY_SERVER", {"CHANGES": 1, "FALSE_DEATHS": 1, "RESETS": 1}, "held"),
    ("M_MOVED_OVERTAKES", {"CHANGES": 1, "RESETS": 1}, "held"),
    ("M_NODES_FIRST", {"DEATHS": 1}, "held"),
]


# The same of a lost node: with SHRINK the others go on without it; else what cannot end well is aborted on all.
LOSS_SHORT = [
    {}, {"SHRINK": 1}, {"FALSE_LOSS": 1}, {"FALSE_LOSS": 1, "SHRINK": 1}, {"DEATHS": 1, "ROUNDS": 1, "SHRINK": 1},
    {"FALSE_LOSS": 1, "FALSE_DEATHS": 1, "ROUNDS": 1, "SHRINK": 1},
]
LOSS_FULL = [{"DEATHS": 1, "ROUNDS": 1}, {"FALSE_LOSS": 1, "FALSE_DEATHS": 1, "ROUNDS": 1}]
LOSS_MUTATIONS = [
    ("M_NODES_DECIDE", {}, "aborted"),
    ("M_OWNER_NOT_TOLD", {"DEATHS": 1}, "failed"),
    ("M_ANY_SERVER", {"FALSE_DEATHS": 1}, "agreed"),
    ("M_SEALS_AFTER_ABORT", {}, "aborted"),
]

# The same in asynchronous mode.
LATEST_SHORT = [
    {"CHANGES": 2}, {"DEATHS": 1}, {"FALSE_DEATHS": 1}, {"CHANGES": 1, "RESETS": 1}, {"DEATHS": 1, "RESETS": 1},
]
LATEST_FULL = [{"DEATHS": 2, "ROUNDS": 1}, {"CHANGES": 1, "DEATHS": 1}, {"CHANGES": 1, "FALSE_DEATHS": 1}]
LATEST_MUTATIONS = [
    ("M_NO_STAMP", {"DEATHS": 1}, "==r"),
    ("M_FIRST_COPY", {"DEATHS": 1}, "value"),
    ("M_ANY_SERVER", {"FALSE_DEATHS": 1}, "==r"),
    ("M_OPEN_EARLY", {"DEATHS": 1}, "==r"),
]


def name_of(case):
    return " ".join(f"{key.lower()}={value}" for key, value in case.items()) or "nothing else"


def explore(folder, model, definitions, optimize="-O0"):
    """Builds the verifier and runs it to the end; returns what it prints. To compile it well takes longer than a short run."""
    flags = [f"-D{key}={value}" for key, value in {**BOUND, **definitions}.items()]
    for command in (["spin", *flags, "-a", model],
                    ["gcc", "-w", optimize, "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=4096", "-DMEMLIM=8000", "-o", "pan", "pan.c"]):
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    return subprocess.run(["./pan", "-m1000000", "-w22"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def check(folder, model, definitions, optimize="-O0"):
    output = explore(folder, model, definitions, optimize)
    assert "errors: 0" in output, output
    assert "max search depth too small" not in output and "reached -DMEMLIM" not in output, output
    states = re.search(r"(\d+) states, stored", output)[1]
    print(f"{name_of(definitions)}: {states} states, no error")


@pytest.mark.parametrize("slots", [{}, {"SLOTS": 1}], ids=["frames", "slots"])
@pytest.mark.parametrize("case", SHORT, ids=name_of)
def test_no_error_within_the_bounds(tmp_path, case, slots):
    check(tmp_path, RECOVERY, {**case, **slots})


@pytest.mark.full
@pytest.mark.parametrize("case", FULL, ids=name_of)
def test_no_error_within_larger_bounds(tmp_path, case):
    check(tmp_path, RECOVERY, case, optimize="-O2")


@pytest.mark.parametrize("case", LOSS_SHORT, ids=name_of)
def test_a_lost_node_ends_the_open_rounds_alike(tmp_path, case):
    check(tmp_path, NODE_LOSS, case, optimize="-O1")


@pytest.mark.full
@pytest.mark.parametrize("case", LOSS_FULL, ids=name_of)
def test_a_lost_node_ends_the_open_rounds_alike_within_larger_bounds(tmp_path, case):
    check(tmp_path, NODE_LOSS, case, optimize="-O2")


@pytest.mark.parametrize("case", LATEST_SHORT, ids=name_of)
def test_no_asynchronous_update_is_lost_or_added_twice(tmp_path, case):
    check(tmp_path, LATEST, case)


@pytest.mark.full
@pytest.mark.parametrize("case", LATEST_FULL, ids=name_of)
def test_no_asynchronous_update_is_lost_or_added_twice_within_larger_bounds(tmp_path, case):
    check(tmp_path, LATEST, case, optimize="-O2")


ALL_MUTATIONS = [
    (model, *mutation) for model, mutations in ((RECOVERY, MUTATIONS), (NODE_LOSS, LOSS_MUTATIONS), (LATEST, LATEST_MUTATIONS))
    for mutation in mutations]


@pytest.mark.parametrize("model,mutation,case,violated", ALL_MUTATIONS, ids=[f"{model.stem}-{mutation}" for model, mutation, _, _ in ALL_MUTATIONS])
def test_every_rule_is_needed(tmp_path, model, mutation, case, violated):
    output = explore(tmp_path, model, {**case, mutation: 1})
    error = re.search(r"assertion violated (.*) \(at depth", output)
    assert error and violated in error[1], output
