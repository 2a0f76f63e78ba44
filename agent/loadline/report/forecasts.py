"""What a backtest of predictors found: rows for the terminal, and a page with plots."""

from typing import Final

from loadline.core.vocabulary.forecasts import Series
from loadline.forecast.backtest import Backtest, Score, Track
from loadline.report import formatting
from loadline.report.page import card, code, grid, page, paragraph, section, table
from loadline.report.plots import BLUE, FAINT, ORANGE, canvas, short_numbers, time_axis

SCORED: Final = (
    "series",
    "predictor",
    "MAE",
    "sMAPE",
    "pinball",
    "of constant's",
    "coverage",
    "fit",
    "longest",
    "fallbacks",
)
"""Header of the rows that ``scored`` gives."""
_EXPLAINED: Final = (
    "MAE and sMAPE are errors of the mean forecast. Pinball is the loss of the upper one, next to its share of what "
    "the constant predictor loses: below 100 % is better. Coverage is the share of intervals that were not above the "
    "upper forecast; it should be the quantile. Fallbacks are moments at which the last value stood in."
)


def scored(result: Backtest) -> list[tuple[str, ...]]:
    """One row for each series and predictor."""
    return [_row(score, _constant(result, score.series)) for score in result.scores]


def forecast_summary(result: Backtest) -> str:
    """What was asked, in a line."""
    series = next(iter(result.series.values()))
    interval_s = series.interval_ms / 1_000.0
    fits = result.scores[0].fits if result.scores else 0
    return (
        f"{result.trace}: {len(series.values)} intervals of {formatting.duration(interval_s)}; "
        f"the next {result.horizon} forecast at {formatting.plural(fits, 'moment')}; upper quantile {result.quantile:g}"
    )


def forecast_verdict(result: Backtest) -> str:
    """Which predictor knew best how much work comes, in a line; empty where no forecast can be judged."""
    errors = sorted(result.work_errors().items(), key=lambda one: one[1])
    told = ", ".join(f"{predictor} {error:.3f}" for predictor, error in errors)
    return told and f"Error of the work, prompt and output tokens as factors, {result.horizon} ahead: {told}"


def forecast_page(result: Backtest, command: str) -> str:
    """Everything about a backtest.

    Args:
        result: What came of it.
        command: What reproduces it.
    """
    tracks = {(track.series, track.predictor): track for track in result.tracks}
    cards = [
        card(f"{score.series}: {score.predictor}", _plot(result, tracks[score.series, score.predictor]))
        for name in result.series
        if (score := _best(result, name)) is not None
    ]
    explained = [paragraph(text) for text in (forecast_verdict(result), _EXPLAINED) if text]
    return page(
        f"loadline forecast: {result.trace}",
        forecast_summary(result),
        [
            section("Scores", table(SCORED, scored(result), set(range(2, len(SCORED))), set()), *explained),
            section("The predictor with the lowest loss", grid(cards)),
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
        panel.step(at, _drawn(series), where="post", color=FAINT, label="what came")
        then = [(at_s - width_s) / unit_s for at_s in track.at_s]
        panel.plot(then, track.mean, color=BLUE, marker=".", markersize=3, label=f"mean, {result.horizon} ahead")
        panel.plot(then, track.upper, color=ORANGE, linestyle="--", label=f"quantile {result.quantile:g}")
        panel.yaxis.set_major_formatter(short_numbers())
        panel.set_title("requests in an interval" if track.series == "requests" else "tokens")
        figure.legend(3)
        return figure.svg(f"{track.series} over time, and what {track.predictor} forecast of it")


def _drawn(series: Series) -> list[float]:
    return [float("nan") if value is None else value for value in series.values]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
