"""The metrics: docs/metrics.md lists the declared metrics, and they follow Prometheus' conventions."""
import json
import re
import subprocess

import pytest

from tests.support import netns
from tests.support.cluster import ROOT
from tools import metrics_table


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    return metrics_table.declared(tmp_path_factory.mktemp("metrics"))


def test_the_page_of_metrics_is_that_of_the_declarations(declared):
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_table.page(declared), (
        "run: PYTHONPATH=. tools/metrics_table.py > docs/metrics.md")


def test_names_and_labels_follow_the_conventions(declared):
    for families in declared.values():
        for name, (kind, text, labels) in families.items():
            assert re.fullmatch(r"(addend|process)_[a-z_]+", name), name
            assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
            assert text.rstrip().endswith("."), f"the help of {name} is a sentence"
            assert not labels & {"job", "instance", "tensor"}, f"{name} has labels {labels}"
            assert not re.search(r"_(ms|us|kb|mb|percent)(_|$)", name), f"{name} is in base units"


@pytest.mark.timing
def test_the_exported_efficiency_is_that_of_the_benchmark():
    """bench/optimal measures rounds from push to result, and agents measure on their own. Both are compared in the same run."""
    if reason := netns.unavailable():
        pytest.skip(reason)
    command = [ROOT / "bench" / "optimal", "--nodes=4", "--cpu-servers=2", "--bytes=8000000", "--rounds=20", "--peer=none", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    line = json.loads(result.stdout)[0]
    assert line["exported_over_measured"] == pytest.approx(1, abs=0.03), line
