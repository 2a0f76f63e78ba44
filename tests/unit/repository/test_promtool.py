"""Rules and queries as Prometheus reads them: promtool runs the tests of the rules and parses all queries."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.programs import find_program
from tests.unit.repository.test_deploy_metrics import DEPLOY, expressions, rules

FOLDER = DEPLOY / "prometheus"
PROMTOOL = find_program("promtool")
TESTED = {
    "LoadlineAlarm",
    "LoadlineLeaders",
    "LoadlineDemandAboveMaximum",
    "LoadlineAttainmentBurnsFast",
    "LoadlineAttainmentLow",
    "LoadlineForecastWrong",
    "LoadlineForecastsFail",
    "LoadlineAllocationsFail",
    "LoadlineTrafficUnknown",
}
"""Alerts whose expressions combine series; the others compare one metric with a number."""

with_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is not installed (Debian: apt-get install prometheus); left out: the syntax of rules and queries, "
    "and the tests of the alerts",
)


def promtool(*arguments: str, folder: Path = FOLDER) -> str:
    """Run promtool and return its output; it must succeed."""
    done = subprocess.run([str(PROMTOOL), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@with_promtool
def test_the_rules_are_valid_and_their_alerts_fire_when_they_should() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "rules.yaml")
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")


@with_promtool
def test_prometheus_can_parse_the_queries_of_dashboard_and_autoscalers(tmp_path: Path) -> None:
    replaced = {"$__rate_interval": "5m", "$model": ".*", "$namespace": ".*"}
    queries = sorted(set(expressions()))
    for name, value in replaced.items():
        queries = [query.replace(name, value) for query in queries]
    parsed = [query for query in queries if "<<" not in query]
    assert len(parsed) > 0.9 * len(queries), "templates of the Prometheus adapter are no queries"
    recorded = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(parsed)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in promtool("check", "rules", str(file), folder=tmp_path)


def test_alerts_that_combine_series_have_a_test_that_fires_and_one_that_does_not() -> None:
    tests = yaml.safe_load((FOLDER / "rules_test.yaml").read_text("utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    firing = {case["alertname"] for case in cases if case.get("exp_alerts")}
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    assert firing == TESTED
    assert TESTED - silent <= {"LoadlineAttainmentLow"}, "its second series is below the limit"
    combining = {rule["alert"] for rule in rules() if " on (" in rule["expr"] and "alert" in rule}
    assert combining <= TESTED
