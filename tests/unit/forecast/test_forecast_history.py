"""Series from traces."""

from pathlib import Path

import pytest

from loadline.core.vocabulary.forecasts import POINTS_MAX
from loadline.errors import ConfigError, DataError
from loadline.forecast import LoadInterval, bin_requests, merge_intervals
from loadline.traces.history import read_history

DATA = Path(__file__).parents[2] / "data"


def test_idle_intervals_count_nothing_and_keep_the_lengths() -> None:
    arrivals = [(60.0, 100.0, 10.0), (61.0, 300.0, 20.0), (200.0, 50.0, 5.0)]
    history = bin_requests(arrivals, 60.0, 300.0)
    assert history.requests.values == (0.0, 2.0, 0.0, 1.0, 0.0)
    assert history.isl_tokens.values == (None, 200.0, 200.0, 50.0, 50.0)
    assert history.osl_tokens.values == (None, 15.0, 15.0, 5.0, 5.0)
    assert (history.requests.interval_ms, history.requests.end_ms) == (60_000, 300_000)


def test_a_partial_interval_is_dropped() -> None:
    assert bin_requests([(5.0, 1.0, 1.0), (15.0, 1.0, 1.0)], 10.0, 19.9).requests.values == (1.0,)
    thirds = bin_requests([(5.0, 1.0, 1.0)], 0.1, 0.3)  # 0.3 / 0.1 is 2.9999999999999996
    assert thirds.requests.values == (0.0, 0.0, 0.0)


def test_the_newest_intervals_are_kept() -> None:
    history = bin_requests([(POINTS_MAX + 9.5, 1.0, 1.0)], 1.0, POINTS_MAX + 10)
    assert len(history.requests.values) == POINTS_MAX
    assert history.requests.values[-1] == 1.0
    assert history.requests.end_ms == (POINTS_MAX + 10) * 1_000


def test_merged_lengths_are_weighted_by_requests() -> None:
    unknown = LoadInterval(None, None, None)
    idle = LoadInterval(0.0, None, None)
    parts = [
        LoadInterval(1.0, 100.0, 10.0),
        LoadInterval(3.0, 200.0, None),
        idle,
        idle,
        idle,
        LoadInterval(2.0, 7.0, 8.0),
    ]
    history = merge_intervals([*parts, unknown, idle, idle], 1_000, 2)
    assert history.requests.values == (4.0, 0.0, 2.0, None)
    assert history.isl_tokens.values == (175.0, 175.0, 7.0, None)
    assert history.osl_tokens.values == (None, None, 8.0, None)
    assert history.requests.interval_ms == 2_000


def test_the_bins_of_a_rate_series_are_used_as_they_are() -> None:
    history = read_history(DATA / "azure2024_conv_bin600.csv")
    assert (len(history.requests.values), history.requests.interval_ms) == (705, 600_000)
    assert history.requests.values[:2] == (13_152.0, 14_596.0)
    assert history.isl_tokens.values[0] == 1_765.0
    hourly = read_history(DATA / "azure2024_conv_bin600.csv", 3_600.0)
    assert (len(hourly.requests.values), hourly.requests.interval_ms) == (117, 3_600_000)


def test_intervals_without_data_are_unknown() -> None:
    values = read_history(DATA / "servegen_m-mid_cut_bin600.csv").requests.values
    assert values.count(None) == 2
    assert len(values) == 6


def test_missing_rows_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("t,num_req,mean_isl,mean_osl\n0,1,2,3\n60,0,,\n240,4,5,6\n", encoding="utf-8")
    history = read_history(path)
    assert history.requests.values == (1.0, 0.0, None, None, 4.0)
    assert history.isl_tokens.values == (2.0, 2.0, None, None, 5.0)


@pytest.mark.parametrize("name", ["azure2023_conv_head.csv", "mooncake_synthetic_cut.jsonl"])
def test_requests_are_counted(name: str) -> None:
    history = read_history(DATA / name, 1.0)
    requests = sum(value or 0.0 for value in history.requests.values)
    assert 1.0 <= requests <= 5.0
    assert all(value is None or value > 0.0 for value in history.isl_tokens.values)


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan"), 90_000.0, 900.0, 300.0])
def test_an_interval_must_be_a_multiple_of_the_bins(interval_s: float) -> None:
    with pytest.raises(ConfigError, match="interval_s"):
        read_history(DATA / "azure2024_conv_bin600.csv", interval_s)


def test_a_broken_trace_is_named(tmp_path: Path) -> None:
    for text, words in (("", "the file is empty"), ("t,num_req\n", "column 'mean_isl' is missing")):
        path = tmp_path / "broken.csv"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=f"{path}, line 1: {words}"):
            read_history(path)
