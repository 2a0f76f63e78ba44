"""Requests drawn from a rate series have its rates, its lengths and the stated variation.

All is drawn from fixed seeds. Tolerances are at least four standard deviations of what is measured.
"""

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest

from loadline.errors import DataError
from loadline.traces import Arrival, RateKnobs, Trace, rates, read_trace

SERIES = Path(__file__).parents[2] / "data" / "servegen_m-mid_cut_bin600.csv"
HEADER = "t,num_req,mean_isl,mean_osl\n"
STEPS = HEADER + "0,1000,100,10\n100,4000,200,20\n200,0,,\n300,1000,400,40\n"


def series(folder: Path, text: str = STEPS) -> Path:
    path = folder / "rates.csv"
    path.write_text(text, encoding="utf-8")
    return path


def count(trace: Trace, start_s: float, end_s: float) -> int:
    return sum(start_s <= one.arrival_s < end_s for one in trace.arrivals)


def gaps_cv(trace: Trace) -> float:
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(trace.arrivals)]
    return pstdev(gaps) / fmean(gaps)


def test_every_bin_has_its_rate_and_its_lengths(tmp_path: Path) -> None:
    trace = read_trace(series(tmp_path), seed=1, arrivals=RateKnobs(length_cv=0.0))
    assert trace.duration_s == 400.0
    assert count(trace, 0, 100) == pytest.approx(1_000, abs=4 * 1_000**0.5)
    assert count(trace, 100, 200) == pytest.approx(4_000, abs=4 * 4_000**0.5)
    assert count(trace, 200, 300) == 0
    assert count(trace, 300, 400) == pytest.approx(1_000, abs=4 * 1_000**0.5)
    assert count(trace, 0, 400) == len(trace.arrivals)
    assert trace.arrivals == sorted(trace.arrivals, key=lambda one: one.arrival_s)
    lengths = {(one.arrival_s // 100, one.isl_tokens, one.osl_tokens) for one in trace.arrivals}
    assert lengths == {(0, 100, 10), (1, 200, 20), (3, 400, 40)}


def test_draws_depend_on_the_seed(tmp_path: Path) -> None:
    path = series(tmp_path)
    assert read_trace(path, seed=1) == read_trace(path, seed=1) != read_trace(path, seed=2)


@pytest.mark.parametrize(
    ("knobs", "cv"),
    [
        (RateKnobs(), 1.0),
        (RateKnobs(cv=3.0), 1.0),  # the coefficient of variation, which a Poisson process ignores
        (RateKnobs(process="gamma", cv=1.0), 1.0),
        (RateKnobs(process="gamma", cv=0.25), 0.25),
        (RateKnobs(process="gamma", cv=3.0), 3.0),
    ],
)
def test_the_times_between_requests_have_the_given_variation(tmp_path: Path, knobs: RateKnobs, cv: float) -> None:
    path = series(tmp_path, HEADER + "0,20000,100,10\n1000,20000,100,10\n")
    trace = read_trace(path, seed=7, arrivals=knobs)
    assert gaps_cv(trace) == pytest.approx(cv, rel=0.1)
    assert len(trace.arrivals) == pytest.approx(40_000, abs=4 * cv * 40_000**0.5)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_lengths_have_the_given_variation(tmp_path: Path, cv: float) -> None:
    path = series(tmp_path, HEADER + "0,20000,2000,500\n1000,20000,2000,500\n")
    arrivals = read_trace(path, seed=7, arrivals=RateKnobs(length_cv=cv)).arrivals
    for lengths, mean in (([one.isl_tokens for one in arrivals], 2_000), ([one.osl_tokens for one in arrivals], 500)):
        assert fmean(lengths) == pytest.approx(mean, rel=4 * cv / 200)
        assert pstdev(lengths) / fmean(lengths) == pytest.approx(cv, rel=0.15)
    assert len({one.isl_tokens / one.osl_tokens for one in arrivals}) > 1_000  # ISL and OSL are drawn independently


def test_a_window_cuts_bins_and_times_are_relative_to_it(tmp_path: Path) -> None:
    knobs = RateKnobs(start_s=50.0, duration_s=100.0, length_cv=0.0)
    trace = read_trace(series(tmp_path), seed=1, arrivals=knobs)
    assert trace.duration_s == 100.0
    assert count(trace, 0, 50) == pytest.approx(500, abs=4 * 500**0.5)
    assert count(trace, 50, 100) == pytest.approx(2_000, abs=4 * 2_000**0.5)
    assert len(trace.arrivals) == count(trace, 0, 100)
    assert {one.isl_tokens for one in trace.arrivals if one.arrival_s < 50} == {100}


def test_the_scale_multiplies_the_rates(tmp_path: Path) -> None:
    for scale in (0.1, 10.0):
        trace = read_trace(series(tmp_path), seed=1, arrivals=RateKnobs(scale=scale))
        assert len(trace.arrivals) == pytest.approx(6_000 * scale, abs=4 * (6_000 * scale) ** 0.5)
        assert trace.duration_s == 400.0


def test_blank_means_take_the_given_ones(tmp_path: Path) -> None:
    path = series(tmp_path, HEADER + "0,10,,\n60,10,30,\n")
    knobs = RateKnobs(isl_tokens=70, osl_tokens=9, length_cv=0.0)
    assert {(one.isl_tokens, one.osl_tokens) for one in read_trace(path, arrivals=knobs).arrivals} == {(70, 9), (30, 9)}
    with pytest.raises(DataError, match=r"line 2: mean_isl is blank\. Set isl_tokens"):
        read_trace(path)
    with pytest.raises(DataError, match=r"line 2: mean_osl is blank\. Set osl_tokens"):
        read_trace(path, arrivals=RateKnobs(isl_tokens=70))


def test_a_published_gap_is_refused_or_skipped() -> None:
    with pytest.raises(DataError, match=r"line 6: there is no data from 2400 s to 3000 s\. Skip gaps"):
        read_trace(SERIES, arrivals=RateKnobs(scale=0.001))
    trace = read_trace(SERIES, arrivals=RateKnobs(scale=0.001, gaps="skip"))
    assert trace.duration_s == 3_600.0
    assert count(trace, 0, 2_400) == len(trace.arrivals) == pytest.approx(5_000, abs=4 * 5_000**0.5)
    # A window without the gap needs no knob.
    assert read_trace(SERIES, arrivals=RateKnobs(scale=0.001, duration_s=2_400.0)).arrivals


@pytest.mark.parametrize("hole", ["60,,30,5,0\n", "60,9,30,5,1\n", ""])
def test_a_gap_is_a_blank_a_mark_or_a_missing_bin(tmp_path: Path, hole: str) -> None:
    text = "t,num_req,mean_isl,mean_osl,gap\n0,100,30,5,0\n" + hole + "120,100,30,5,0\n"
    # The width is that of the first two bins, so missing bins are detected from the third on.
    path = series(tmp_path, text if hole else text.replace("120,", "60,") + "180,100,30,5,0\n")
    with pytest.raises(DataError, match=r"there is no data from (60|120) s to (120|180) s"):
        read_trace(path)
    trace = read_trace(path, arrivals=RateKnobs(gaps="skip"))
    assert count(trace, *((60, 120) if hole else (120, 180))) == 0
    assert len(trace.arrivals) > 100


def test_bins_are_relative_to_the_first(tmp_path: Path) -> None:
    path = series(tmp_path, HEADER + "1700000000,1000,30,5\n1700000060,0,30,5\n")
    trace = read_trace(path, arrivals=RateKnobs(length_cv=0.0))
    assert trace.duration_s == 120.0
    assert 59 < trace.arrivals[-1].arrival_s < 60
    assert trace.arrivals[0] == Arrival(trace.arrivals[0].arrival_s, 30, 5)


def test_too_many_requests_are_refused(tmp_path: Path) -> None:
    path = series(tmp_path, HEADER + "0,5000000,30,5\n600,1,30,5\n")
    with pytest.raises(DataError, match=r"5000001 requests, more than 5000000, are selected\. Select a shorter window"):
        read_trace(path)


def test_few_very_bursty_requests_are_drawn() -> None:
    drawn = [rates._renewal_points(1.0, 20.0, np.random.default_rng(seed)) for seed in range(200)]
    assert all(float(points.max(initial=0.0)) < 1 for points in drawn)
    assert max(points.size for points in drawn) > 50
