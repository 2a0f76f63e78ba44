"""Warnings of knobs without effect: those of another planner, and seasons beyond the history."""

from random import Random

import pytest

from loadline.core.planning.demand.intervals import INTERVALS_MAX
from loadline.core.vocabulary.forecasts import ForecastKnobs, ForecastQuery, Series
from loadline.forecast import forecast
from tests.support.config_texts import config_warnings

LINEAR = "linear = { alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }"


def warnings(planner: str, knobs: str) -> list[str]:
    pool = f'[[models.pools]]\nname = "a"\nrole = "aggregated"\n{LINEAR}\n'
    return config_warnings(f'[[models]]\nname = "m"\nplanner = "{planner}"\n{knobs}\n{pool}', base="")


@pytest.mark.parametrize(
    ("planner", "knobs", "remedy"),
    [
        ("sla", "throughput.attainment = 0.9", "Write [models.sla.throughput]."),
        ("sla", "load.load_adjustment_interval_ms = 7000", "Write [models.sla.load]."),
        ("throughput", "sla.throughput.attainment = 0.9", 'Write [models.throughput], or set planner = "sla".'),
        ("load", "threshold.decode_kv_scale_up_threshold = 0.1", 'Remove it, or set planner = "threshold".'),
    ],
)
def test_knobs_of_another_planner_are_warned_of_with_the_right_section(planner: str, knobs: str, remedy: str) -> None:
    (warning,) = warnings(planner, knobs)
    section = knobs.partition(".")[0]
    assert warning == f"models[0].{section}: the {planner} planner ignores it. {remedy}"


@pytest.mark.parametrize(
    ("planner", "objectives", "keys"),
    [
        ("hpa", "ttft_ms = 1", ["ttft_ms"]),
        ("threshold", "ttft_ms = 1, itl_ms = 9", ["ttft_ms", "itl_ms"]),
        ("throughput", "ttft_ms = 400, attainment = 0.9, tokens_per_s = 5", ["tokens_per_s", "attainment"]),
        ("load", "ttft_ms = 400", []),
        ("hybrid", "ttft_ms = 400, attainment = 0.9, tokens_per_s = 5", []),
        ("saturation", "ttft_ms = 10, attainment = 0.9", ["attainment"]),
        ("threshold", "ttft_ms = 500", []),
    ],
)
def test_objectives_that_the_planner_ignores_are_reported(planner: str, objectives: str, keys: list[str]) -> None:
    found = warnings(planner, f"objectives = {{ {objectives} }}")
    expected = [f"models[0].objectives.{key}: the {planner} planner ignores it. Remove it, or set " for key in keys]
    assert [text.partition("planner to one of ")[0] for text in found] == expected


def test_unused_objectives_of_a_class_are_named_there() -> None:
    text = """
[[service_classes]]
name = "premium"
objectives = { itl_ms = 9 }
[[models]]
name = "m"
planner = "threshold"
service_class = "premium"
[[models.pools]]
name = "a"
role = "aggregated"
"""
    (warning,) = config_warnings(text, base="")
    assert warning.startswith("service_classes[0].objectives.itl_ms (of models[0].objectives.itl_ms): the threshold ")
    assert warning.endswith("one of auto, hybrid, keda, load, queueing, saturation, sla, throughput.")


@pytest.mark.parametrize("knobs", ["sla.throughput.attainment = 0.9", "sla.load.load_adjustment_interval_ms = 7000"])
def test_knobs_of_the_planner_give_no_warning(knobs: str) -> None:
    assert warnings("sla", knobs) == []


@pytest.mark.parametrize(("planner", "section"), [("sla", "sla.throughput"), ("throughput", "throughput")])
def test_a_season_beyond_the_history_is_warned_of_with_the_needed_interval(planner: str, section: str) -> None:
    def at(interval_s: int, more: str = "") -> list[str]:
        return warnings(planner, f"{section}.throughput_adjustment_interval_ms = {interval_s}_000\n{more}")

    (warning,) = at(42)
    assert warning.startswith(f"models[0].{section}.forecast.seasonal.season_s: two seasons of 86400 s are 4114 ")
    assert f"and only {INTERVALS_MAX} are kept" in warning
    assert "Set throughput_adjustment_interval_ms to 43000 or more, or season_s to 86016 or less." in warning
    assert at(43) == []
    assert at(42, f"{section}.forecast.seasonal.season_s = 86_016") == []
    assert at(42, f'{section}.forecast.predictor = "constant"') == []
    assert at(42, f'{section}.forecast.auto.candidates = ["constant", "kalman"]') == []


def test_the_season_is_used_with_the_needed_interval() -> None:
    """Build levels that only the previous day predicts, the next of which starts after the last known value."""
    day, ahead, level = 2_009, 20, 41  # intervals of 43 s
    drawn = Random(1)
    levels = [drawn.uniform(50.0, 500.0) for _ in range(day // level)]
    load = [levels[(place - INTERVALS_MAX) % day // level] for place in range(INTERVALS_MAX + ahead)]

    def error(points: int) -> float:
        past = Series(tuple(load[INTERVALS_MAX - points : INTERVALS_MAX]), 43_000, INTERVALS_MAX * 43_000)
        answer = forecast(ForecastQuery(past, ahead, ForecastKnobs("seasonal")))
        assert answer is not None
        return abs(answer.mean[-1] - load[-1])

    assert error(INTERVALS_MAX) < 0.1 * error(INTERVALS_MAX // 2)
