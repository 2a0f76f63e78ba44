"""Command ``forecast``: a rolling backtest of the predictors on the load of a trace."""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, get_args

import msgspec

from loadline import report
from loadline.adapters.child_fitter import ChildFitter
from loadline.cli import event_loop, output, output_files, progress
from loadline.cli.output_files import check_output_files, write_files
from loadline.cli.packages import predictor_packages, require
from loadline.core.vocabulary.forecasts import (
    HORIZON_MAX,
    AnyPredictor,
    Forecast,
    ForecastKnobs,
    ForecastQuery,
    PredictorName,
    SeasonalKnobs,
)
from loadline.errors import ConfigError, DataError
from loadline.forecast import History, available
from loadline.forecast.backtest import Backtest, Forecaster, backtest, moments
from loadline.traces.history import read_history

_NAMES: Final[tuple[AnyPredictor, ...]] = (*get_args(PredictorName), "auto")
_ORIGINS_MAX: Final = 10_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``forecast``."""
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="FILE", help="request trace or rate series")
    add(
        "--interval",
        type=float,
        metavar="S",
        help="length of an interval (default: 60, or a bin of the rate series)",
    )
    add("--horizon", type=int, default=6, metavar="N", help="number of intervals to forecast (default: %(default)s)")
    add("--quantile", type=float, default=0.9, metavar="Q", help="quantile of upper forecasts (default: %(default)s)")
    add("--season", type=int, default=86_400, metavar="S", help="season length in seconds (default: %(default)s)")
    add("--predictors", nargs="+", choices=_NAMES, help="predictors to score (default: all installed)")
    add(
        "--origins",
        type=int,
        default=48,
        metavar="N",
        help="forecasts per predictor and series (default: %(default)s)",
    )
    add(
        "--deadline",
        type=float,
        default=30.0,
        metavar="S",
        help="time limit of a fit, in seconds (default: %(default)g)",
    )
    output_files.arguments(parser)
    add("--quiet", action="store_true", help="do not show progress")


def forecast(options: argparse.Namespace) -> int:
    """Score predictors by a rolling backtest on arrivals, ISL and OSL."""
    check_output_files(options, options.trace)
    all_knobs = _all_knobs(options)
    history = _history(options)
    series = {"requests": history.requests, "ISL": history.isl_tokens, "OSL": history.osl_tokens}
    sizes = moments(history.requests, options.horizon, options.origins)
    if not sizes:
        problem = f"{len(history.requests.values)} intervals are too few for a horizon of {options.horizon}"
        raise DataError(f"{options.trace}: {problem}. Take a longer trace, a smaller --interval or --horizon.")
    total = len(sizes) * len(series) * len(all_knobs)
    with (
        progress.progress_display(f"forecasting {options.trace.name}", "fits", quiet=options.quiet) as on_progress,
        _forecaster(options.deadline, total, on_progress) as forecaster,
    ):
        found = [
            backtest(name, one, options.horizon, knobs, sizes=sizes, forecaster=forecaster)
            for name, one in series.items()
            for knobs in all_knobs
        ]
    scores, tracks = [score for score, _ in found], [track for _, track in found]
    result = Backtest(options.trace.name, options.horizon, options.quantile, series, scores, tracks)
    scored = output.table([report.SCORE_HEADER, *report.score_rows(result)])
    lines = (report.forecast_summary(result), scored, report.forecast_ranking(result))
    output.print_result(options, result, "\n".join(filter(None, lines)))
    contents = {}
    if options.json is not None:
        contents[options.json] = msgspec.json.encode(result) + b"\n"
    if options.html is not None:
        contents[options.html] = report.forecast_page(result, options.line).encode()
    write_files(contents)
    return 0


def _history(options: argparse.Namespace) -> History:
    try:
        return read_history(options.trace, options.interval)
    except ConfigError as error:
        raise ConfigError("--interval", error.problem, error.remedy) from error


@contextmanager
def _forecaster(deadline_s: float, total: int, on_progress: progress.OnProgress) -> Iterator[Forecaster]:
    """Yield a function that forecasts in a child process, as an agent does, and reports progress."""
    done = count(1)
    with asyncio.Runner() as runner:
        fitter = ChildFitter(scoring_limited=False)

        def forecaster(query: ForecastQuery) -> Forecast | None:
            answer = event_loop.run(fitter.fit(query, deadline_s), runner)
            on_progress(next(done), total)
            return answer

        try:
            yield forecaster
        finally:
            event_loop.run(fitter.close(), runner)


def _all_knobs(options: argparse.Namespace) -> list[ForecastKnobs]:
    """Build the knobs of each predictor.

    Raises:
        ConfigError: An option is out of its bounds, or a package is missing.
    """
    bounds = (
        ("--horizon", options.horizon, 1, HORIZON_MAX),
        ("--origins", options.origins, 1, _ORIGINS_MAX),
        ("--deadline", options.deadline, 0.001, 3_600.0),
        ("--quantile", options.quantile, 0.5, 0.999),
        ("--season", options.season, 60, 604_800),
    )
    for option, value, low, high in bounds:
        if not low <= value <= high:
            raise ConfigError(option, f"is {value:g}", f"Write {low:g} to {high:g}.")
    names = options.predictors or [name for name in _NAMES if available(name)]
    knobs = [
        ForecastKnobs(predictor=name, quantile=options.quantile, seasonal=SeasonalKnobs(season_s=options.season))
        for name in dict.fromkeys(names)
    ]
    require([needed for one in knobs for needed in predictor_packages(one)])
    return knobs
