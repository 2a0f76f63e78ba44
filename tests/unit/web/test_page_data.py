from itertools import pairwise
from math import isnan, nan
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.state.explanation_log import EncodedExplanation
from loadline.core.vocabulary.status import DecisionSummary, TrafficStatus
from loadline.web.decision_log import DECISIONS_MAX, DecisionLog
from loadline.web.history import FLEET_POINTS_MAX, POINTS_MAX, SPAN_MS, FleetHistory, ModelHistory
from loadline.web.page_data import fleet_row, model_page, point, waits, worker_cell
from tests.support.statuses import START_MS, agent, explanation, model, pool, worker


def encoded(**fields: Any) -> EncodedExplanation:
    """Return an encoded explanation with these fields."""
    return EncodedExplanation.of(replace(explanation(), **fields))


def test_a_row_sums_the_pools_and_weighs_kv_usage_by_reporting_workers() -> None:
    row = fleet_row(replace(model(), pools=(pool(1, kv=0.9), pool(3, desired=5, kv=0.1))))
    assert (row.desired, row.ready, row.kv_usage_ratio) == (6, 4, 0.3)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "steady"),
        ({"missing": ("no frontend reports traffic",)}, "attention"),
        ({"objectives": {"ttft_ms": 200.0}}, "attention"),
        ({"objectives": {"itl_ms": 21.0}}, "attention"),
        ({"objectives": {"ttft_ms": 500.0, "attainment": 0.98}}, "attention"),
        ({"objectives": {"ttft_ms": 200.0, "attainment": 0.95}}, "steady"),
        ({"pools": (pool(3, desired=4),)}, "scaling"),
        ({"no_operation": True, "missing": ("x",)}, "advisory"),
        ({"epoch": 0, "missing": ("no frontend reports traffic",)}, "standby"),
        ({"paused": True, "no_operation": True, "epoch": 0}, "paused"),
    ],
)
def test_the_state_of_a_row_names_what_matters_most(changes: dict[str, object], state: str) -> None:
    assert fleet_row(replace(model(), **changes)).state == state


def test_a_model_without_ready_workers_has_no_kv_usage_and_serves_nothing() -> None:
    empty = replace(model(), pools=(pool(0, desired=2),))
    assert fleet_row(empty).kv_usage_ratio is None
    assert point(empty)["kv:decode"] is None
    assert point(empty)["served"] == 0.0


def test_the_load_of_silent_workers_is_unknown_and_not_0() -> None:
    silent = replace(model(), pools=(replace(pool(4, kv=0.0), fresh=0, waiting_requests=0),))
    row = fleet_row(silent)
    assert (row.ready, row.kv_usage_ratio, row.waiting_requests) == (4, None, None)
    assert point(silent)["kv:decode"] is None
    assert fleet_row(model()).waiting_requests == 3


def test_pools_whose_workers_report_no_kv_usage_do_not_lower_that_of_a_model() -> None:
    prefill = replace(pool(4, kv=0.0), pool="prefill", role="prefill", kv_reporting=0)
    mixed = replace(model(), pools=(replace(pool(4, kv=0.9), kv_reporting=4), prefill))
    assert fleet_row(mixed).kv_usage_ratio == 0.9
    assert (point(mixed)["kv:decode"], point(mixed)["kv:prefill"]) == (0.9, None)
    assert fleet_row(replace(model(), pools=(prefill,))).kv_usage_ratio is None


def test_a_standby_shows_no_counts_of_its_former_term() -> None:
    standby = replace(model(), pools=(replace(pool(2, desired=5), pending=3),), epoch=0)
    row = fleet_row(standby)
    assert (row.desired, row.ready, row.starting, row.decided_at_ms) == (None, 2, 0, None)
    assert point(standby)["desired:decode"] is None
    page = model_page(standby, {}, explanation(), at_ms=START_MS, interval_ms=5_000, decisions_revision=0)
    assert [one.code for one in page.waits] == ["cooldown"], "what its planner would do is no reason"


def test_a_point_has_what_the_ready_workers_serve_and_the_error_of_the_forecast() -> None:
    found = point(model())
    assert (found["served"], found["forecast"], found["forecast_lead_ms"], found["forecast_error"]) == (
        12.0, 12.0, 60_000, 0.1,
    )  # fmt: skip
    unknown = replace(model(), traffic=TrafficStatus(None, None, None, None, None, 0))
    assert point(unknown)["rate"] is None


def test_a_worker_that_stopped_reporting_is_silent_and_a_starting_one_is_not() -> None:
    assert worker_cell(worker(1, age_ms=10_001)).state == "silent"
    assert worker_cell(worker(1, age_ms=10_000)).state == "ready"
    assert worker_cell(worker(1, state="starting", age_ms=99_000)).state == "starting"


def test_a_worker_that_reports_no_kv_usage_has_none() -> None:
    assert worker_cell(worker(1, kv=0.5)).kv_percent == 50
    assert worker_cell(replace(worker(1, kv=0.0), kv_reported=False)).kv_percent is None


def test_a_wait_ends_when_its_reason_says_and_is_listed_once() -> None:
    hold = explanation()
    found = list(waits(replace(hold, limits=(*hold.limits, *hold.limits))))
    assert [(one.code, one.until_ms) for one in found] == [("cooldown", START_MS + 5_000), ("no_workers", None)]
    assert "the cooldown of 9 s ends in 5 s" in found[0].sentence


def test_the_page_of_a_model_lists_workers_once_and_as_arrays() -> None:
    status = model(workers=2)
    cells = {"decode": [worker_cell(one) for one in status.pools[0].workers]}
    page = msgspec.json.decode(
        msgspec.json.encode(model_page(status, cells, None, at_ms=START_MS, interval_ms=5_000, decisions_revision=3))
    )
    assert page["workers"] == {"decode": [["decode-1", "ready", 50, 1, 9], ["decode-2", "ready", 50, 2, 10]]}
    assert page["status"]["pools"][0]["workers"] == []


def test_a_ring_keeps_the_newest_points_in_order_and_fills_new_series_with_unknown() -> None:
    history = ModelHistory(points_max=4, interval_ms=1_000)
    for second in range(6):
        history.record(second * 1_000, {"rate": float(second)})
    history.record(5_900, {"rate": 9.0, "ready:new": 1.0})  # within the last interval
    history.record(4_000, {"rate": 77.0})  # the clock went back
    page = history.page()
    assert page.times_ms == [2_000, 3_000, 4_000, 5_900]
    assert page.series["rate"] == [2.0, 3.0, 4.0, 9.0]
    assert [*map(isnan, page.series["ready:new"])] == [True, True, True, False]
    assert msgspec.json.encode(nan) == b"null"


def test_an_hour_of_any_number_of_models_is_bounded() -> None:
    for models in (1, 100, 1_000):
        history = FleetHistory(models)
        for at_ms in range(0, 2 * SPAN_MS, 2_500):
            history.record(model(), at_ms)
        page = history.page("llama")
        assert len(page.times_ms) * models <= max(FLEET_POINTS_MAX, POINTS_MAX)
        assert page.times_ms[-1] - page.times_ms[0] >= SPAN_MS - 2 * page.interval_ms
    history.forget_others(set())
    assert history.page("llama").times_ms == []


def test_more_models_leave_each_its_hour_and_its_newest_decisions() -> None:
    history, log = FleetHistory(1), DecisionLog(1)
    for at_ms in range(0, SPAN_MS, 5_000):
        history.record(model(), at_ms)
    log.add(encoded(at_ms=number, decision_id=f"d{number}") for number in range(DECISIONS_MAX))
    for kept in (history, log):
        kept.divide_among(1_000)
    history.record(model(), SPAN_MS)
    page = history.page("llama")
    assert (len(page.times_ms), page.interval_ms) == (72, 50_000)
    assert page.times_ms == [*range(95_000, SPAN_MS, 50_000), SPAN_MS]
    assert page.series["rate"] == [10.0] * 72
    assert [one.decision_id for one in log.pages("llama")] == ["d63", "d62", "d61", "d60"]
    history.divide_among(1)
    history.record(model(), SPAN_MS + 5_000)
    times_ms = history.page("llama").times_ms
    assert len(times_ms) == 712
    assert {later - earlier for earlier, later in pairwise(times_ms)} == {5_000}, "the charts have no gap"


def test_a_time_without_points_stays_one_at_other_intervals() -> None:
    history = ModelHistory(points_max=60, interval_ms=60_000)
    for minute in (1, 2, 12, 13):
        history.record(minute * 60_000 + 30_000, {"rate": float(minute)})
    history.resize(720, 5_000)
    page = history.page()
    gaps = [(earlier, later) for earlier, later in pairwise(page.times_ms) if later - earlier > 5_000]
    assert gaps == [(150_000, 695_000)]
    assert [page.series["rate"].count(value) for value in (1.0, 2.0, 12.0, 13.0)] == [12] * 4
    history.resize(60, 60_000)
    assert history.page().series["rate"] == [1.0, 2.0, 2.0, 12.0, 13.0, 13.0], "the last point of each minute"


def test_series_without_a_value_are_dropped_when_points_are_divided_again() -> None:
    history = ModelHistory(points_max=4, interval_ms=1_000)
    history.record(0, {"rate": 1.0, "ready:gone": 1.0})
    for second in range(1, 5):
        history.record(second * 1_000, {"rate": 1.0})
    history.resize(8, 1_000)
    assert [*history.page().series] == ["rate"]


def test_decisions_have_their_last_state_and_a_revision_that_rises_only_with_a_change() -> None:
    log = DecisionLog(1)
    log.add([encoded()])
    log.update("llama", model().decision)
    before = log.revision("llama")
    log.add([encoded()])
    log.update("llama", model().decision)
    assert log.revision("llama") == before
    log.add([encoded(superseded_by="d2")])
    assert log.revision("llama") == before + 1
    [page] = log.pages("llama")
    assert (page.state, page.superseded_by) == ("done", "d2")
    assert page.recommendations[0].reasons[0].startswith("decode: ")


def test_more_explanations_than_are_kept_change_nothing_when_they_come_again() -> None:
    log = DecisionLog(1)
    held = [encoded(at_ms=START_MS + number, decision_id=f"d{number}") for number in range(DECISIONS_MAX + 1)]
    log.add(held)
    before, pages = log.revision("llama"), log.pages("llama")
    log.add(held)
    assert (log.revision("llama"), log.pages("llama")) == (before, pages)
    assert pages[-1].decision_id == "d1"


def test_decisions_of_a_model_are_bounded_and_newest_first() -> None:
    log = DecisionLog(1)
    for number in range(200):
        log.add([encoded(at_ms=START_MS + number, decision_id=f"d{number}")])
        log.update("llama", DecisionSummary(f"d{number}", "llama", 1, number, 0, "done", {}, ()))
    pages = log.pages("llama")
    assert [page.decision_id for page in pages[:2]] == ["d199", "d198"]
    assert len(pages) == DECISIONS_MAX
    log.forget_others({model.model for model in agent().models})
    assert log.pages("llama") == []
