"""The chart's alerts and recorded rates, by themselves: what they claim about metrics that are given."""
import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.support.cluster import ROOT
from tests.support.monitoring import RULES, alerts, rules, shortened

pytestmark = pytest.mark.full

CASES = ROOT / "tests" / "monitoring" / "alerts_test.yaml"
OPERATIONS = ROOT / "docs" / "operations.md"


def promtool(*arguments, cwd):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def folder(tmp_path):
    """Where promtool finds the rules beside their cases."""
    shutil.copy(RULES, tmp_path)
    shutil.copy(CASES, tmp_path)
    return tmp_path


def cases():
    return yaml.safe_load(CASES.read_text())["tests"]


def firing_cases():
    """(alert, its labels, case, time) of every expectation that an alert fires."""
    for case in cases():
        for expectation in case["promql_expr_test"]:
            for sample in expectation.get("exp_samples", []):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
                yield labels["alertname"], labels, case, expectation["eval_time"]


def silent_cases():
    return {re.search(r'alertname="(\w+)"', one["expr"])[1] for case in cases() for one in case["promql_expr_test"] if "exp_samples" not in one}


def test_the_rules_are_valid(folder):
    result = promtool("check", "rules", RULES.name, cwd=folder)
    assert result.returncode == 0, result.stderr


def test_every_alert_fires_when_it_should_and_not_otherwise(folder):
    result = promtool("test", "rules", CASES.name, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    names = {rule["alert"] for rule in alerts()}
    assert {name for name, *_ in firing_cases()} == names
    # Where several jobs or machines are in one case, those that do not fire are the other half of it.
    beside = {"AddendRdmaFellBack"}
    assert silent_cases() | beside == names


def test_a_planted_error_in_a_rule_is_noticed(folder):
    rules_file = folder / RULES.name
    rules_file.write_text(rules_file.read_text().replace("addend_server_speed_ratio) < 0.8", "addend_server_speed_ratio) < 0.3"))
    result = promtool("test", "rules", CASES.name, cwd=folder)
    assert result.returncode != 0 and "AddendSlowServer" in result.stdout + result.stderr


def texts_of(folder, alert, case, time):
    """Summary and description of an alert in a case, as Prometheus writes them: promtool prints those it did not expect."""
    test = {**case, "alert_rule_test": [{"eval_time": time, "alertname": alert, "exp_alerts": []}]}
    del test["promql_expr_test"]
    file = folder / "texts.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [RULES.name], "evaluation_interval": "15s", "tests": [test]}))
    output = promtool("test", "rules", file.name, cwd=folder)
    found = re.findall(r"Annotations:\{(.*)\}", output.stdout + output.stderr)
    assert found, output
    return [dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', one)) for one in found]


@pytest.mark.parametrize("alert,labels,case,time", list(firing_cases()), ids=[f"{one[0]}: {one[2]['name']}" for one in firing_cases()])
def test_an_alert_says_in_words_whom_it_is_about(folder, alert, labels, case, time):
    subject = {value for name, value in labels.items() if name in ("job_name", "node", "server", "hostname", "rank", "instance")}
    if "node" in labels:
        subject.discard(labels.get("instance"))  # the node says it better
    for annotations in texts_of(folder, alert, case, time):
        text = " ".join(json.loads(annotations[name]) for name in ("summary", "description"))
        assert "<" not in text and "%!" not in text and "  " not in text, text
        for word in subject:
            assert re.search(rf"\b{re.escape(word)}\b", text), f"'{word}' is not in: {text}"


def test_every_alert_has_a_severity_and_a_section_of_the_runbook():
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
                for line in OPERATIONS.read_text().splitlines() if line.startswith("#")}
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        page, anchor = rule["annotations"]["runbook_url"].rsplit("#", 1)
        assert page.endswith("docs/operations.md") and anchor == rule["alert"].lower()
        assert anchor in headings, f"docs/operations.md has no section {rule['alert']}"


def test_shortened_rules_differ_in_durations_alone():
    durations = re.compile(r"(\[|offset |for: )\d+[smhd]")
    short = shortened(RULES.read_text())
    assert short != RULES.read_text()
    assert durations.sub(r"\1", short) == durations.sub(r"\1", RULES.read_text())
    assert len(yaml.safe_load(short)["groups"]) == len(yaml.safe_load(RULES.read_text())["groups"])


def test_recorded_rates_are_used():
    everything = RULES.read_text() + "".join(path.read_text() for path in (RULES.parent / "dashboards").glob("*.json"))
    for rule in rules():
        if "record" in rule:
            assert len(re.findall(rf"{re.escape(rule['record'])}\b", everything)) > 1, f"nobody uses {rule['record']}"
