"""Rolling backtests of predictors: forecasts at many past times, compared with the actual values."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.vocabulary.forecasts import POINTS_MAX, Forecast, ForecastKnobs, ForecastQuery, Series
from loadline.forecast import scores
from loadline.forecast.base import Values

Forecaster = Callable[[ForecastQuery], Forecast | None]

# Share of the series before the first forecast: of five days, enough to contain a daily season.
_FIRST_SHARE: Final = 1 / 3


class Score(Struct, frozen=True):
    """Scores of a predictor on a series: means over all forecasts and steps; None if no actual value is known."""

    series: str
    predictor: str
    fits: int
    fallbacks: int
    """Forecasts that repeated the last value, or had no data."""
    mae: float | None
    """Mean absolute error, in requests per interval or in tokens."""
    smape: float | None
    pinball: float | None
    coverage: float | None
    fit_ms: float
    """Median time of a forecast."""
    fit_ms_max: float


class Track(Struct, frozen=True):
    """Forecasts of the last step of each horizon, for a plot."""

    series: str
    predictor: str
    at_s: tuple[float, ...]
    """Ends of the forecast intervals, since the start of the series."""
    mean: tuple[float, ...]
    upper: tuple[float, ...]


class Backtest(Struct, frozen=True):
    """Result of all predictors on all series of a trace."""

    trace: str
    horizon: int
    quantile: float
    series: dict[str, Series]
    scores: list[Score]
    tracks: list[Track]

    def work_errors(self) -> dict[str, float]:
        """Return the error of the last step over requests, ISL and OSL by predictor; see ``scores.work_error``."""
        found: dict[str, float] = {}
        for predictor in dict.fromkeys(track.predictor for track in self.tracks):
            tracks = [track for track in self.tracks if track.predictor == predictor]
            at_s = sorted(set.intersection(*(set(track.at_s) for track in tracks)))
            truth = [_joined([self._truth(track.series, at_s)]) for track in tracks]
            means = [dict(zip(track.at_s, track.mean, strict=True)) for track in tracks]
            error = scores.work_error(truth, [_joined([[mean[at] for at in at_s]]) for mean in means])
            if np.isfinite(error):
                found[predictor] = error
        return found

    def _truth(self, series: str, at_s: list[float]) -> list[float | None]:
        values, width_s = self.series[series].values, self.series[series].interval_ms / 1_000.0
        return [values[round(at / width_s) - 1] for at in at_s]


class _PastForecast(Struct, frozen=True):
    size: int
    answer: Forecast | None
    fit_ms: float


def moments(series: Series, horizon: int, count: int) -> list[int]:
    """Return up to ``count`` history lengths, evenly from a third of the series to ``horizon`` before its end."""
    last = len(series.values) - horizon
    first = max(1, int(len(series.values) * _FIRST_SHARE))
    if last < first:
        return []
    evenly = np.linspace(first, last, min(count, last - first + 1))
    return [int(size) for size in np.unique(evenly.round())]


def backtest(
    name: str, series: Series, horizon: int, knobs: ForecastKnobs, *, sizes: list[int], forecaster: Forecaster
) -> tuple[Score, Track]:
    """Forecast the next ``horizon`` intervals from each history length; score the forecasts."""
    start_ms = series.end_ms - len(series.values) * series.interval_ms
    forecasts: list[_PastForecast] = []
    for size in sizes:
        past = series.values[:size][-POINTS_MAX:]
        query = ForecastQuery(Series(past, series.interval_ms, start_ms + size * series.interval_ms), horizon, knobs)
        began_s = time.perf_counter()
        answer = forecaster(query)
        forecasts.append(_PastForecast(size, answer, (time.perf_counter() - began_s) * 1_000.0))
    return _score(name, series, horizon, knobs, forecasts), _track(name, series, horizon, knobs, forecasts)


def _score(name: str, series: Series, horizon: int, knobs: ForecastKnobs, forecasts: list[_PastForecast]) -> Score:
    answers = [(one.size, one.answer) for one in forecasts if one.answer is not None]
    truth = _joined([series.values[size : size + horizon] for size, _ in answers])
    mean = _joined([answer.mean for _, answer in answers])
    upper = _joined([answer.upper for _, answer in answers])
    times_ms = [one.fit_ms for one in forecasts]
    return Score(
        series=name,
        predictor=knobs.predictor,
        fits=len(forecasts),
        fallbacks=sum(one.answer is None or one.answer.fallback not in ("", "flat") for one in forecasts),
        mae=_known(scores.mae(truth, mean)),
        smape=_known(scores.smape(truth, mean)),
        pinball=_known(scores.pinball(truth, upper, knobs.quantile)),
        coverage=_known(scores.coverage(truth, upper)),
        fit_ms=float(np.median(times_ms)),
        fit_ms_max=max(times_ms),
    )


def _track(name: str, series: Series, horizon: int, knobs: ForecastKnobs, forecasts: list[_PastForecast]) -> Track:
    drawn = [(one.size, one.answer) for one in forecasts if one.answer is not None]
    return Track(
        name,
        knobs.predictor,
        tuple((size + horizon) * series.interval_ms / 1_000.0 for size, _ in drawn),
        tuple(answer.mean[-1] for _, answer in drawn),
        tuple(answer.upper[-1] for _, answer in drawn),
    )


def _joined(parts: Sequence[Sequence[float | None]]) -> Values:
    return np.array([value for part in parts for value in part], dtype=np.float64)


def _known(score: float) -> float | None:
    return score if np.isfinite(score) else None
