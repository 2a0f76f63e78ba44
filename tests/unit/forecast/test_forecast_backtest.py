"""Scores, the backtest, and `loadline forecast`."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadline.cli.main import main
from loadline.core.vocabulary.forecasts import Forecast, ForecastKnobs, ForecastQuery, PredictorName, Series
from loadline.forecast import forecast, scores
from loadline.forecast.backtest import Backtest, backtest, moments
from loadline.report import forecast_page
from loadline.traces.history import read_history

DAYS = Path(__file__).parents[2] / "data" / "azure2024_conv_bin600.csv"
NAN = float("nan")


def test_scores_have_their_definitions() -> None:
    truth, mean = np.array([10.0, 0.0, NAN]), np.array([6.0, 0.0, 5.0])
    assert scores.mae(truth, mean) == 2.0
    assert scores.smape(truth, mean) == pytest.approx((2 * 4 / 16 + 0) / 2)
    assert scores.pinball(truth, mean, 0.9) == pytest.approx((0.9 * 4 + 0) / 2)
    assert scores.pinball(mean[:1], truth[:1], 0.9) == pytest.approx(0.1 * 4)
    assert scores.coverage(truth, mean) == 0.5
    assert math.isnan(scores.mae(truth[2:], mean[2:]))


def test_the_true_quantile_has_the_lowest_loss() -> None:
    truth = np.arange(1_000.0)
    losses = [scores.pinball(truth, np.full(1_000, level), 0.9) for level in (850.0, 900.0, 950.0)]
    assert losses[1] == min(losses)


def test_the_work_error_weights_tokens_and_lengths() -> None:
    truth, twice = [np.array([10.0, NAN]), np.array([99.0, 9.0]), np.array([19.0, 9.0])], [20.0, 99.0, 19.0]
    # Twice the requests: prompt and output tokens are both off by a factor of two, their lengths are not.
    expected = 0.4 * math.log(1_981 / 991) + 0.4 * math.log(381 / 191)
    assert scores.work_error(truth, [np.full(2, value) for value in twice]) == pytest.approx(expected)
    assert scores.work_error(truth, truth) == 0.0


def test_forecasts_start_in_the_later_part_and_have_a_future() -> None:
    series = Series(tuple(map(float, range(30))), 1_000)
    assert moments(series, 5, 4) == [10, 15, 20, 25]
    assert moments(series, 20, 4) == [10]
    assert moments(series, 21, 4) == []


def test_no_forecast_uses_future_values() -> None:
    seen: list[ForecastQuery] = []

    def forecaster(query: ForecastQuery) -> Forecast | None:
        seen.append(query)
        return None

    values = tuple(map(float, range(30)))
    score, track = backtest(
        "x", Series(values, 1_000, 90_000), 5, ForecastKnobs(), sizes=[10, 25], forecaster=forecaster
    )
    assert [(one.series.values, one.series.end_ms) for one in seen] == [(values[:10], 70_000), (values[:25], 85_000)]
    assert (score.fits, score.fallbacks, score.mae, track.mean) == (2, 2, None, ())


def test_a_perfect_forecast_has_no_error() -> None:
    values = tuple(map(float, range(30)))

    def forecaster(query: ForecastQuery) -> Forecast | None:
        size = len(query.series.values)
        return Forecast(values[size : size + 5], values[size : size + 5], "kalman")

    score, track = backtest(
        "x", Series(values, 1_000, 30_000), 5, ForecastKnobs("kalman"), sizes=[10, 25], forecaster=forecaster
    )
    assert (score.mae, score.smape, score.pinball, score.coverage, score.fallbacks) == (0.0, 0.0, 0.0, 1.0, 0)
    assert (track.at_s, track.mean) == ((15.0, 30.0), (14.0, 29.0))


def loss(predictor: PredictorName, series: Series) -> tuple[float, float]:
    """Return mean error and pinball loss one hour ahead, for 23 forecasts after two days of history."""
    score, _ = backtest("", series, 6, ForecastKnobs(predictor), sizes=list(range(288, 699, 18)), forecaster=forecast)
    assert score.mae is not None
    assert score.pinball is not None
    assert score.fallbacks == 0
    return score.mae, score.pinball


def test_the_seasonal_regression_is_better_than_the_others_on_days_of_real_load() -> None:
    series = read_history(DAYS).requests
    best = loss("seasonal", series)
    others: tuple[PredictorName, ...] = ("constant", "kalman", "arima", "prophet")
    for name in others:
        mae, pinball = loss(name, series)
        assert best[0] < 0.9 * mae, name
        assert best[1] < 0.95 * pinball, name


def test_the_command_prints_a_row_per_series_and_predictor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json, html = tmp_path / "result.json", tmp_path / "<page>.html"
    options = ["--predictors", "constant", "seasonal", "--origins", "3", "--json", str(json), "--html", str(html)]
    assert main(["forecast", "--trace", str(DAYS), *options]) == 0
    printed = capsys.readouterr()
    summary, header, *rows, verdict = printed.out.splitlines()
    assert "705 intervals of 10 min; horizon 6 intervals, 3 forecasts per predictor" in summary
    assert header.split()[:2] == ["series", "predictor"]
    assert verdict.startswith("Log error of the work (prompt and output tokens) 6 intervals ahead: seasonal 0.")
    assert [tuple(row.split()[:2]) for row in rows] == [
        (series, name) for series in ("requests", "ISL", "OSL") for name in ("constant", "seasonal")
    ]
    result = msgspec.json.decode(json.read_bytes(), type=Backtest)
    assert [score.fallbacks for score in result.scores] == [0] * 6
    page = html.read_text("utf-8")
    assert page.count("<svg") == 3
    assert "&lt;page&gt;.html" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_series_without_lengths_are_shown_without_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rates.csv"
    rows = "".join(f"{at * 60},{10 + at % 3},,\n" for at in range(40))
    path.write_text(f"t,num_req,mean_isl,mean_osl\n{rows}", encoding="utf-8")
    page = tmp_path / "page.html"
    assert main(["forecast", "--trace", str(path), "--predictors", "constant", "--html", str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:5] == ["OSL", "constant", "-", "-", "-"]
    assert page.read_text("utf-8").count("<svg") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--horizon", "0"], "--horizon: is 0. Write 1 to 288."),
        (["--quantile", "0.4"], "--quantile: is 0.4. Write 0.5 to 0.999."),
        (["--quantile", "nan"], "--quantile: is nan. Write 0.5 to 0.999."),
        (["--origins", "0"], "--origins: is 0"),
        (["--deadline", "0"], "--deadline: is 0"),
        (["--season", "1"], "--season: is 1"),
        (
            ["--interval", "700"],
            "--interval: is 700, and the bins of the trace are 600 s wide. Write a multiple of the bins.",
        ),
        (["--interval", "86400"], "4 intervals are too few for a horizon of 6. Take a longer trace"),
        (["--json", str(DAYS)], "is an input file. Name another file."),
        (["--json", "/nowhere/result"], "--json: /nowhere/result cannot be written: No such file or directory"),
    ],
)
def test_invalid_options_are_reported(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "--trace", str(DAYS), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_an_empty_backtest_has_a_page() -> None:
    nothing = Backtest("x", 1, 0.9, {"requests": Series((), 1_000)}, [], [])
    assert "loadline forecast: x" in forecast_page(nothing, "loadline forecast")
