"""Queries of Prometheus, Grafana and HPA use metrics and labels that an agent exports."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from loadline.adapters.metrics import Metrics
from loadline.app import Agent
from loadline.core.vocabulary.conditions import Condition
from loadline.core.vocabulary.status import AgentStatus, Estimates, ForecastStatus, PoolEstimate, SupplyStatus
from tests.unit.adapters.test_metrics import status_with
from tests.unit.repository.test_deploy import manifests

DEPLOY = Path(__file__).parents[3] / "deploy"
AUTOSCALING = DEPLOY / "kubernetes" / "autoscaling"
OF_PROMETHEUS = {"instance", "job", "le", "namespace"}
"""Labels that Prometheus adds."""
RUNTIME_COUNTERS = re.findall(r'"(\w+)":', inspect.getsource(Agent._counters))
CORE_COUNTERS = [
    name
    for path in sorted((DEPLOY.parent / "agent" / "loadline" / "core").rglob("*.py"))
    for name in re.findall(r'state\.count\("(\w+)"\)', path.read_text("utf-8"))
]


def full_status() -> AgentStatus:
    """Return a status that gives every metric of the agent a sample."""
    whole = status_with({"alarm_x": 1, **dict.fromkeys(CORE_COUNTERS, 1)}, {"invalid": 1})
    [model] = whole.models
    conditions = (Condition("MetricsAvailable", status=True, reason="MetricsFound", message="", since_ms=0),)
    pools = tuple(
        replace(pool, decided=True, changes={"up:x": 1}, cost_per_hour=1.0, power_w=1.0) for pool in model.pools
    )
    supplies = (SupplyStatus("h100", 8, 0, {}),)
    full = replace(
        model,
        settled=True,
        conditions=conditions,
        pools=pools,
        traffic=replace(model.traffic, frontends=1),
        objectives={"ttft_ms": 500.0, "itl_ms": 50.0, "attainment": 0.95},
        estimates=Estimates(
            ForecastStatus(1.0, 1, 1.0, 1.0), {"decode": 1.0}, {pools[0].pool: PoolEstimate(1.0, 1.0, 1.0, 1.0)}
        ),
        hold_reasons=("p0:cooldown",),
    )
    return replace(whole, models=(full,), supplies=supplies)


def exported_metrics() -> dict[str, set[str]]:
    """Return every metric of an agent, with its labels."""
    text = b"".join(Metrics(lambda: dict.fromkeys(RUNTIME_COUNTERS, 1), "1").render(full_status())).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def load(name: str) -> Any:
    return yaml.safe_load((AUTOSCALING / name).read_text("utf-8"))


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "loadline.json").read_text("utf-8"))
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield from (rule["metricsQuery"] for rule in load("prometheus-adapter-values.yaml")["rules"]["external"])


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_query_uses_existing_metrics_and_labels(expression: str) -> None:
    known = exported_metrics()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    names = re.findall(r"\bloadline[_:][\w:]+", expression)
    assert names
    assert set(names) <= known.keys() | recorded
    labels = {label for name in names for label in known.get(name, set())} | OF_PROMETHEUS
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = [one.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for one in group.split(",")]
    assert {*selected, *grouped} <= labels
    assert expression.count("(") == expression.count(")")


def test_metrics_that_the_documents_recommend_have_an_alert_or_a_panel() -> None:
    text = (DEPLOY.parent / "docs" / "reference" / "metrics-and-alarms.md").read_text("utf-8")
    rows = re.findall(r"^\| (`loadline_.*?) \|.*\| ([^|]*) \|$", text, re.MULTILINE)
    names = [name for row, symptom in rows if symptom for name in re.findall(r"`(loadline_\w+)`", row)]
    asked = {name for text in expressions() for name in re.findall(r"\bloadline_\w+", text)}
    assert len(names) > 10
    assert not [name for name in names if not {name, f"{name}_bucket", f"{name}_sum"} & asked]


def test_alerts_describe_the_problem_and_its_remedy() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 5
    for rule in alerts:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "action"}
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        names = re.findall(r"\bloadline_\w+", rule["expr"])
        labels = {label for name in names for label in exported_metrics()[name]} if names else {"model", "pool"}
        assert used <= labels | OF_PROMETHEUS


def test_panels_of_the_dashboard_do_not_overlap_and_use_any_prometheus() -> None:
    panels = dashboard()["panels"]
    places = [(x, y) for one in panels for x, y in squares(one["gridPos"])]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    used = {name for text in expressions() for name in re.findall(r"\$(\w+)", text) if not name.startswith("__")}
    assert used <= variables


def squares(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_prometheus_selects_the_service_and_keeps_the_agents_labels() -> None:
    spec = load("servicemonitor.yaml")["spec"]
    service = manifests()["Service"]
    [endpoint] = spec["endpoints"]
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["honorLabels"] is True
