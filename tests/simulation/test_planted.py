"""The patches of planted/: each fits the code, and each mutation of the models and each planted fault has its patch."""
import os
import re
import subprocess

import pytest

from tests.simulation import planted

ROOT = planted.ROOT
PATCHES = planted.patches()


def mutations():
    """M_... in spec/....pml: the models' own lists of mutations are their #ifdefs."""
    return {f"{name} in spec/{model.name}" for model in (ROOT / "spec").glob("*.pml") for name in re.findall(r"^#if(?:n?def) (M_\w+)", model.read_text(), re.MULTILINE)}


def faults():
    sources = [path for folder in ("lib", "services") for path in (ROOT / folder).rglob("*") if path.suffix in (".cc", ".h")]
    return {f"the planted fault {name.lower()}" for path in sources for name in re.findall(r"ADDEND_FAULT_(\w+)", path.read_text())}


@pytest.mark.parametrize("patch", PATCHES, ids=[patch.name for patch in PATCHES])
def test_a_patch_fits_the_code(patch):
    checked = subprocess.run(["git", "apply", "--check", patch.path], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, f"write the patch anew, since the code has changed:\n{checked.stderr}"


def test_every_mutation_of_the_models_and_every_planted_fault_has_a_patch():
    known = mutations() | faults()
    assert len(known) > 20
    covered = {counterpart for patch in PATCHES for counterpart in patch.counterparts}
    assert covered | set(planted.EXCEPTIONS) == known
    assert not covered & set(planted.EXCEPTIONS)


def test_a_row_has_the_median_and_the_misses():
    patch = PATCHES[0]
    found = [planted.Found(3, "wrong bits"), planted.Found(7, "no result"), planted.Found(None, "")]
    assert planted.row(patch, found, 300) == f"{patch.name} | {patch.rule} | 7 | more than 300 (1 of 3) | wrong bits"
    assert planted.row(patch, found[:2], 300) == f"{patch.name} | {patch.rule} | 5 | 7 | wrong bits"


@pytest.mark.full
def test_the_simulator_notices_a_few_of_them():
    place = planted.Workplace(ROOT, os.environ.get("ADDEND_JOBS", os.cpu_count()))
    for name in ("fault_wrong_order", "recovery_report_sent", "recovery_nodes_first"):
        [patch] = planted.patches(name)
        [found] = place.count_seeds(patch, [1], limit=300)
        assert found.seeds, f"300 seeds do not notice {name}"
