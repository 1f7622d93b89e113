"""The chart's Grafana dashboards: they are what Grafana's types say, their expressions are PromQL, their metrics exist."""
import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.support.cluster import ROOT
from tests.support.monitoring import DASHBOARDS, RULES, annotations, filled, panels, rules, variable_metrics

pytestmark = pytest.mark.full

NPM = ROOT / "tests" / "monitoring" / "npm"
OPERATIONS = ROOT / "docs" / "operations.md"
CASES = ROOT / "tests" / "monitoring" / "alerts_test.yaml"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """A folder with Grafana's types and the script that compiles against them."""
    folder = tmp_path_factory.mktemp("npm")
    shutil.copytree(NPM, folder, dirs_exist_ok=True)
    result = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True)
    if result.returncode != 0 and re.search("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH", result.stderr):
        pytest.skip("Grafana's types could not be fetched: no npm registry can be reached from here")
    assert result.returncode == 0, result.stderr
    return folder


def compiled(compiler, *files):
    return subprocess.run(["node", "check.mjs", *map(str, files)], cwd=compiler, capture_output=True, text=True)


def boards():
    return [json.loads(path.read_text()) for path in DASHBOARDS]


def test_they_compile_as_grafanas_types(compiler):
    result = compiled(compiler, *DASHBOARDS)
    assert result.returncode == 0, result.stdout + result.stderr


MISSPELT = [
    ('"graphTooltip"', '"graphTooltp"'), ('"gridPos": {"h": 8, "w"', '"gridPos": {"h": 8, "width"'), ('"fillOpacity"', '"fillOpacit"'),
    ('"schemaVersion": 42', '"schemaVersion": "42"'), ('"displayMode": "list"', '"displayMode": "lst"'), ('"expr"', '"exp"'),
    ('"unit"', '"unitt"'), ('"type": "query"', '"type": "qury"'), ('"type": "stat"', '"type": "sta"')]


def test_whatever_is_misspelt_does_not_compile(compiler, tmp_path):
    text = DASHBOARDS[0].read_text()
    files = [tmp_path / f"misspelt{number}.json" for number in range(len(MISSPELT))]
    for file, (right, wrong) in zip(files, MISSPELT):
        assert right in text
        file.write_text(text.replace(right, wrong, 1))
    result = compiled(compiler, *files)
    assert result.returncode == 1
    unnoticed = [wrong for file, (_, wrong) in zip(files, MISSPELT) if f"{file.name}: " not in result.stdout]
    assert not unnoticed, result.stdout + result.stderr


def expressions():
    return [target["expr"] for _, panel in panels() for target in panel["targets"]] + [expr for _, expr in annotations()] + variable_metrics()


def test_every_expression_is_promql(tmp_path):
    recorded = [{"record": f"expression:{number}", "expr": filled(expr)} for number, expr in enumerate(expressions())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": recorded}]}))
    result = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def declared_metrics():
    """The names that the services declare: string literals of their own metrics."""
    sources = [path for folder in ("lib", "services") for path in (ROOT / folder).rglob("*.cc")]
    return {name for path in sources for name in re.findall(r'"((?:addend|process)_[a-z_0-9]+)"', path.read_text())}


def named_metrics(text):
    names = re.findall(r"(?<![:\w/.-])(?:addend|process)_[a-z0-9_]+\b(?![:./])", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


@pytest.mark.parametrize("path", [RULES, CASES, OPERATIONS, *DASHBOARDS], ids=lambda path: path.name)
def test_every_metric_is_declared_by_a_service(path):
    names = named_metrics(path.read_text())
    assert names, path
    undeclared = sorted(names - declared_metrics())
    assert undeclared == []


def test_recorded_rates_are_recorded():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for expr in expressions() for name in re.findall(r"addend:[a-z_0-9:]+", expr)}
    assert used <= recorded


def test_every_panel_says_what_it_shows_and_has_a_unit():
    for board, panel in panels():
        where = f"{board}: {panel['title']}"
        assert len(panel["description"]) > 20, where
        assert panel["targets"], where
        units = panel["fieldConfig"]["defaults"].get("unit") or panel["options"].get("yAxis", {}).get("unit") or any(
            one["id"] == "unit" for override in panel["fieldConfig"]["overrides"] for one in override["properties"])
        assert units, f"{where} has no unit"


def test_panels_lie_side_by_side_without_gaps_within_24_columns():
    for board in boards():
        lines, ids = {}, [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        for panel in board["panels"]:
            lines.setdefault(panel["gridPos"]["y"], []).append(panel["gridPos"])
        bottom = 0
        for y, positions in sorted(lines.items()):
            assert y == bottom, f"{board['title']}: a gap or an overlap at row {y}"
            assert len({position["h"] for position in positions}) == 1, f"{board['title']}: heights differ at row {y}"
            edges = sorted((position["x"], position["x"] + position["w"]) for position in positions)
            assert [start for start, _ in edges] == [0] + [end for _, end in edges[:-1]], f"{board['title']}: gaps at row {y}"
            assert edges[-1][1] == 24, f"{board['title']}: row {y} ends at column {edges[-1][1]}"
            bottom = y + positions[0]["h"]


def test_dashboards_have_fixed_names_and_take_their_data_from_the_chosen_prometheus():
    assert {board["uid"] for board in boards()} == {"addend-job", "addend-cluster"}
    for board in boards():
        assert board["templating"]["list"][0]["type"] == "datasource"
        sources = re.findall(r'"datasource": \{[^}]*"uid": "([^"]*)"', json.dumps(board))
        assert sources and set(sources) == {"${datasource}"}
        links = {match for match in re.findall(r'"/d/([\w-]+)', json.dumps(board))}
        assert links <= {"addend-job", "addend-cluster"}
