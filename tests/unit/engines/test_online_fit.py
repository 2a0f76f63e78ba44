"""Latency lines learned online, and the doubts about very different ones."""

import random

import msgspec
import pytest

from loadline.core.engines.fitting import FitRefused, fit_line
from loadline.core.engines.online_fit import LearnedLine
from loadline.core.engines.regression import SAMPLES_MIN, Line

HOUR_MS = 3_600_000


def fed(line: LearnedLine, true: Line, *, now: int = 0, noise: float = 0.02, loads: tuple[int, int] = (1, 200)) -> None:
    rng = random.Random(5)
    for _ in range(60):
        load = rng.randint(*loads)
        line.push(now, load, true.at(load) * rng.uniform(1.0 - noise, 1.0 + noise))


def learned(true: Line, noise: float = 0.02) -> LearnedLine:
    line = LearnedLine()
    fed(line, true, noise=noise)
    line.refit(0)
    return line


def known(line: LearnedLine) -> tuple[float, float]:
    assert line.line is not None
    return line.line.intercept_ms, line.line.slope


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_iterations_determine_the_line(noise: float) -> None:
    found = learned(Line(0.05, 7.0), noise)
    assert known(found) == pytest.approx((7.0, 0.05), rel=0.02 + 2.5 * noise)
    assert found.problem == ""


def test_a_steady_load_keeps_samples_of_other_loads() -> None:
    line = learned(Line(0.05, 7.0))
    before = line.line
    fed(line, Line(0.05, 7.0), now=60_000, loads=(98, 102))
    line.refit(60_000)
    assert line.line == before, "60 more samples at the same load add no information"
    isolated = LearnedLine()
    fed(isolated, Line(0.05, 7.0), loads=(98, 102))
    isolated.refit(0)
    assert (isolated.line, "nearly the same load" in isolated.problem) == (None, True)


def test_invalid_samples_and_cold_starts_are_ignored() -> None:
    line = learned(Line(0.05, 7.0))
    before = known(line)
    for load, latency_ms in ((float("nan"), 9.0), (float("inf"), 9.0), (0.0, 9.0), (9.0, float("nan")), (9.0, -1.0)):
        line.push(0, load, latency_ms)
    line.push(0, 1.0, 9_000.0)
    line.refit(0)
    assert known(line) == pytest.approx(before, rel=0.03)


def test_too_few_samples_are_refused_with_a_reason() -> None:
    line = LearnedLine()
    for count in range(SAMPLES_MIN):
        assert line.problem == f"{count} samples are too few: wait for {SAMPLES_MIN}"
        line.push(0, 2.0**count, 10.0 + 2.0**count)
        line.refit(0)
    assert line.line is not None


def test_a_very_different_line_is_doubted_for_several_fits() -> None:
    line = learned(Line(0.05, 7.0))
    before = line.line
    for fit_number in range(1, 5):
        fed(line, Line(0.2, 28.0), now=fit_number)
        line.refit(fit_number)
        assert line.line == before
        assert f"fit {fit_number} of 5" in line.problem
    line.refit(5)
    assert known(line) == pytest.approx((28.0, 0.2), rel=0.1)


def test_one_fit_that_agrees_ends_the_doubts() -> None:
    line = learned(Line(0.05, 7.0))
    for true in (*[Line(0.2, 28.0)] * 4, Line(0.05, 7.0), *[Line(0.2, 28.0)] * 4):
        fed(line, true)
        line.refit(0)
    assert known(line) == pytest.approx((7.0, 0.05), rel=0.1)


def test_a_small_change_is_ignored_and_a_larger_one_adopted() -> None:
    line = learned(Line(0.05, 7.0), 0.0)
    before = line.line
    fed(line, Line(0.0505, 7.07), noise=0.0)
    line.refit(0)
    assert line.line is before, "values derived from it need not be computed again"
    fed(line, Line(0.06, 8.4), noise=0.0)
    line.refit(0)
    assert known(line) == pytest.approx((8.4, 0.06), rel=0.01)


def test_after_an_hour_samples_expire_and_the_line_is_kept() -> None:
    line = learned(Line(0.05, 7.0))
    line.refit(HOUR_MS + 1)
    assert (line.octaves, line.problem) == ({}, f"0 samples are too few: wait for {SAMPLES_MIN}")
    assert known(line) == pytest.approx((7.0, 0.05), rel=0.1)


def test_a_decoded_line_is_equal() -> None:
    line = learned(Line(0.05, 7.0))
    again = msgspec.json.decode(msgspec.json.encode(line), type=LearnedLine)
    assert again == line
    assert msgspec.json.encode(again) == msgspec.json.encode(line)


def test_implausibly_short_times_are_ignored() -> None:
    line = LearnedLine()
    for number in range(1, 51):
        line.push(number, float(number), 1e-200 if number % 5 else 9.9e-7)
    assert not line.octaves
    line.refit(100)
    assert line.line is None


def test_a_sweep_with_implausibly_short_times_is_refused() -> None:
    found = fit_line([1.0, 2.0, 4.0], [1e-200, 2.0, 4.0])
    assert isinstance(found, FitRefused)
    assert "1e-200 ms" in found.problem
