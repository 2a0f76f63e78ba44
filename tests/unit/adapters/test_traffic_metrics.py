"""Metrics of traffic, from the reports of frontends to a scrape."""

import pytest

from loadline.core.controller import Controller
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.exposed import exposed
from tests.support.fleet_harness import START

SECOND = 1_000


def controller(planner: str = "queueing", objectives: ObjectiveKnobs | None = None) -> Controller:
    model = ModelKnobs("m", (PoolKnobs("decode", "decode"),), planner=planner, objectives=objectives or KNOBS)
    return Controller(Settings("a", "all", (model,)))


KNOBS = ObjectiveKnobs(300.0, 25.0, attainment=0.9)


def report(agent: Controller, now: int, frontend: str = "f", **figures: float) -> None:
    values = {"interval_ms": SECOND, "arrivals": 0} | figures
    sample = TrafficSample(sequence=now, **values)  # type: ignore[arg-type]
    agent.handle([TrafficReported("m", frontend, 1, sample)], now)


def test_before_any_report_counters_are_zero_and_requests_unknown() -> None:
    found = exposed(controller(), START, "loadline_traffic")
    assert found["loadline_traffic_frontends m"] == found["loadline_traffic_arrivals_total m"] == 0
    assert not [name for name in found if name.startswith("loadline_traffic_requests")]


def test_arrivals_lengths_and_latencies_are_counted_in_base_units() -> None:
    agent = controller()
    report(agent, START, arrivals=10, completed=4, isl_tokens=100.0, osl_tokens=50.0, ttft_ms=250.0, itl_ms=20.0)
    report(agent, START + SECOND, "g", arrivals=6, completed=1, isl_tokens=200.0, osl_tokens=10.0, ttft_ms=500.0)
    found = exposed(agent, START + SECOND, "loadline_traffic")
    expected = {
        "frontends": 2,
        "arrivals_total": 16,
        "completed_total": 5,
        "isl_tokens_count": 16,
        "isl_tokens_sum": 2_200,
        "osl_tokens_sum": 210,
        "ttft_seconds_count": 5,
        "ttft_seconds_sum": 1.5,
        "itl_seconds_count": 4,
        "itl_seconds_sum": 0.08,
    }
    assert {name: found[f"loadline_traffic_{name} m"] for name in expected} == pytest.approx(expected)


def test_queued_and_running_requests_are_those_of_frontends_that_report() -> None:
    agent = controller()
    report(agent, START, queued=3, in_flight=20)
    report(agent, START + 4 * SECOND, "g", queued=1, in_flight=2)
    states = {
        name.split()[-1]: value for name, value in exposed(agent, START + 4 * SECOND).items() if "requests" in name
    }
    assert (states["queued"], states["in_flight"]) == (4, 22)
    later = exposed(agent, START + 6 * SECOND, "loadline_traffic")
    assert (later["loadline_traffic_frontends m"], later["loadline_traffic_requests m queued"]) == (1, 1)
    silent = exposed(agent, START + 60 * SECOND, "loadline_traffic")
    assert silent["loadline_traffic_frontends m"] == 0
    assert "loadline_traffic_requests m queued" not in silent, "unknown is not 0"


def test_attainment_counts_only_requests_that_frontends_judged() -> None:
    agent = controller()
    report(agent, START, completed=10, ttft_met=9, itl_met=4, both_met=3)
    report(agent, START + SECOND, completed=30, ttft_met=30)
    report(agent, START + 2 * SECOND, completed=50)
    found = exposed(agent, START + 2 * SECOND, "loadline_traffic")
    assert found["loadline_traffic_judged_total m ttft"] == 40
    assert found["loadline_traffic_met_total m ttft"] == 39
    assert found["loadline_traffic_judged_total m itl"] == 10
    assert found["loadline_traffic_met_total m itl"] == 4
    assert found["loadline_traffic_judged_total m both"] == 10
    assert found["loadline_traffic_met_total m both"] == 3


def test_objectives_are_those_that_the_planner_sizes_for() -> None:
    found = exposed(controller(), START, "loadline_objective")
    assert found == {
        "loadline_objective_seconds m ttft": 0.3,
        "loadline_objective_seconds m itl": 0.025,
        "loadline_objective_attainment_ratio m": 0.9,
    }
    assert exposed(controller("threshold"), START, "loadline_objective") == {}
    without = exposed(controller(objectives=ObjectiveKnobs(300.0, 25.0)), START, "loadline_objective_attainment")
    assert without == {}, "the planner's default is no objective of the operator"
