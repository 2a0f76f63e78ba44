"""Report of a backtest of predictors: rows for the terminal, and a page with plots."""

from typing import Final

from loadline import formatting
from loadline.core.vocabulary.forecasts import Series
from loadline.forecast.backtest import Backtest, Score, Track
from loadline.report.page import card, code, grid, page, paragraph, section, table
from loadline.report.plots import BLUE, FAINT, ORANGE, canvas, short_numbers, time_axis

SCORE_HEADER: Final = (
    "series",
    "predictor",
    "MAE",
    "sMAPE",
    "pinball",
    "vs constant",
    "coverage",
    "fit p50",
    "fit max",
    "fallbacks",
)
"""Header of the rows of ``score_rows``."""
_EXPLAINED: Final = (
    "MAE and sMAPE are errors of the mean forecast. Pinball is the loss of the upper forecast, also relative to the "
    "constant predictor: below 100% is better. Coverage is the fraction of intervals that did not exceed the upper "
    "forecast; it should equal the quantile. Fallbacks are forecasts that repeated the last value instead."
)


def score_rows(result: Backtest) -> list[tuple[str, ...]]:
    """Return one row per series and predictor."""
    return [_row(score, _constant(result, score.series)) for score in result.scores]


def forecast_summary(result: Backtest) -> str:
    """Summarise the backtest in a line."""
    series = next(iter(result.series.values()))
    interval_s = series.interval_ms / 1_000.0
    fits = result.scores[0].fits if result.scores else 0
    horizon, forecasts = formatting.plural(result.horizon, "interval"), formatting.plural(fits, "forecast")
    return (
        f"{result.trace}: {len(series.values)} intervals of {formatting.duration(interval_s)}; "
        f"horizon {horizon}, {forecasts} per predictor; upper quantile {result.quantile:g}"
    )


def forecast_ranking(result: Backtest) -> str:
    """Rank the predictors by their error of the work, in a line; return an empty text if none can be scored."""
    errors = sorted(result.work_errors().items(), key=lambda one: one[1])
    ranking = ", ".join(f"{predictor} {error:.3f}" for predictor, error in errors)
    return ranking and f"Log error of the work (prompt and output tokens) {result.horizon} intervals ahead: {ranking}"


def forecast_page(result: Backtest, command: str) -> str:
    """Build the page of a backtest.

    Args:
        result: Scores and tracks of all predictors.
        command: Command line that reproduces it.
    """
    tracks = {(track.series, track.predictor): track for track in result.tracks}
    cards = [
        card(f"{score.series}: {score.predictor}", _plot(result, tracks[score.series, score.predictor]))
        for name in result.series
        if (score := _best(result, name)) is not None
    ]
    explained = [paragraph(text) for text in (forecast_ranking(result), _EXPLAINED) if text]
    return page(
        f"loadline forecast: {result.trace}",
        forecast_summary(result),
        [
            section(
                "Scores", table(SCORE_HEADER, score_rows(result), set(range(2, len(SCORE_HEADER))), set()), *explained
            ),
            section("Predictor with the lowest loss", grid(cards)),
            section("Reproduce", code(command)),
        ],
    )


def _row(score: Score, constant: float | None) -> tuple[str, ...]:
    ratio = score.pinball / constant if score.pinball is not None and constant else None
    return (
        score.series,
        score.predictor,
        _number(score.mae),
        _share(score.smape),
        _number(score.pinball),
        _share(ratio),
        _share(score.coverage),
        formatting.ms(score.fit_ms),
        formatting.ms(score.fit_ms_max),
        str(score.fallbacks),
    )


def _constant(result: Backtest, series: str) -> float | None:
    return next((one.pinball for one in result.scores if (one.series, one.predictor) == (series, "constant")), None)


def _best(result: Backtest, series: str) -> Score | None:
    known = [(one.pinball, place) for place, one in enumerate(result.scores) if one.series == series and one.pinball]
    return result.scores[min(known)[1]] if known else None


def _plot(result: Backtest, track: Track) -> str:
    series = result.series[track.series]
    with canvas(f"forecast {track.series}", (2.5,)) as figure:
        [panel] = figure.panels
        width_s = series.interval_ms / 1_000.0
        unit_s = time_axis(panel, len(series.values) * width_s)
        at = [place * width_s / unit_s for place in range(len(series.values))]
        panel.step(at, _floats(series), where="post", color=FAINT, label="actual")
        starts = [(at_s - width_s) / unit_s for at_s in track.at_s]
        panel.plot(starts, track.mean, color=BLUE, marker=".", markersize=3, label=f"mean, {result.horizon} ahead")
        panel.plot(starts, track.upper, color=ORANGE, linestyle="--", label=f"quantile {result.quantile:g}")
        panel.yaxis.set_major_formatter(short_numbers())
        panel.set_title("requests per interval" if track.series == "requests" else "tokens")
        figure.legend(3)
        return figure.svg(f"{track.series} over time, and its forecast by {track.predictor}")


def _floats(series: Series) -> list[float]:
    """Return the values of a series with NaN for None, which plots as a gap."""
    return [float("nan") if value is None else value for value in series.values]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
