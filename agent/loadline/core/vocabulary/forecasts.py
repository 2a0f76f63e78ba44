"""Forecast queries and results, with the knobs of the predictors.

A query is complete: the child process or the simulation that executes it needs no other input. The knobs are therefore
defined here and not with the predictors.
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

POINTS_MAX = 4_096  # two weeks of five minutes; 40 kB of JSON
HORIZON_MAX = 288  # a day of five minutes
DAY_MS = 86_400_000

PredictorName = Literal["constant", "kalman", "arima", "prophet", "seasonal"]
AnyPredictor = Literal[PredictorName, "auto"]
Fallback = Literal["", "flat", "points", "failed", "not_finite", "absurd", "late", "away"]
_FAILURES: Final[frozenset[Fallback]] = frozenset({"failed", "not_finite", "absurd", "late", "away"})

_Variance = Annotated[float, Meta(gt=0, le=1e12)]


class Series(Struct, frozen=True):
    """Values at a regular interval, oldest first. None, NaN and negative values are unknown; 0 is idle."""

    values: Annotated[tuple[float | None, ...], Meta(max_length=POINTS_MAX)]
    interval_ms: Annotated[int, Meta(ge=1, le=86_400_000)]
    end_ms: int = 0
    """End of the last interval, in Unix ms."""


class History(Struct, frozen=True):
    """Past load of a model, as three series over the same intervals."""

    requests: Series
    isl_tokens: Series
    """Mean input length of the requests of each interval."""
    osl_tokens: Series
    """Mean output length of the requests of each interval."""
    ends_at_ms: Annotated[int, Meta(ge=0, lt=DAY_MS)] | None = None
    """Time of day (UTC) of its end, in ms; None aligns the end with the start of the agent."""


class KalmanKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the Kalman filter. Only the ratios of the variances matter."""

    q_level: Annotated[_Variance, Meta(description="Variance of the change of the level per interval.")] = 1.0
    q_trend: Annotated[_Variance, Meta(description="Variance of the change of the trend per interval.")] = 0.1
    r: Annotated[_Variance, Meta(description="Variance of a measurement.")] = 10.0


class ArimaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of ARIMA. Selecting an order takes seconds, a fit about 50 ms."""

    points: Annotated[int, Meta(ge=24, le=POINTS_MAX, description="Number of newest points to fit.")] = 288
    order_intervals: Annotated[
        int, Meta(ge=1, le=POINTS_MAX, description="Intervals after which the order is selected again.")
    ] = 96


class ProphetKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of Prophet."""

    points: Annotated[int, Meta(ge=5, le=POINTS_MAX, description="Number of newest points to fit.")] = 1_008


class SeasonalKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the seasonal regression."""

    season_s: Annotated[
        int, Meta(ge=60, le=604_800, description="Period of the load; two periods of data are needed.")
    ] = 86_400
    points: Annotated[int, Meta(ge=24, le=POINTS_MAX, description="Number of newest points to fit.")] = 1_008


class AutoKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the selection between predictors."""

    candidates: Annotated[
        tuple[PredictorName, ...],
        Meta(min_length=1, max_length=5, description="Predictors to choose from; ties go to the first."),
    ] = ("seasonal", "constant", "kalman", "arima")
    origins: Annotated[
        int,
        Meta(
            ge=2,
            le=200,
            description="Past times at which each predictor is scored, spread over the newest season; at least half as "
            "many, as the distance between them is a power of two of intervals, and at most 2,400 divided by the "
            "number of forecast intervals.",
        ),
    ] = 24


class ForecastKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of forecasts. The field named after a predictor holds its knobs."""

    predictor: Annotated[
        AnyPredictor, Meta(description="Predictor; auto selects the one with the lowest past loss.")
    ] = "auto"
    quantile: Annotated[float, Meta(ge=0.5, le=0.999, description="Quantile of the upper forecast.")] = 0.9
    min_points: Annotated[
        int, Meta(ge=1, le=POINTS_MAX, description="Known points below which the last value is the forecast.")
    ] = 5
    log1p: Annotated[
        bool, Meta(description="Forecast log(1 + x), for load that grows exponentially; not needed by seasonal.")
    ] = False
    kalman: KalmanKnobs = KalmanKnobs()
    arima: ArimaKnobs = ArimaKnobs()
    prophet: ProphetKnobs = ProphetKnobs()
    seasonal: SeasonalKnobs = SeasonalKnobs()
    auto: AutoKnobs = AutoKnobs()


class ForecastQuery(Struct, frozen=True):
    """Request to forecast the next ``horizon`` intervals of a series."""

    series: Series
    horizon: Annotated[int, Meta(ge=1, le=HORIZON_MAX)]
    knobs: ForecastKnobs = ForecastKnobs()


class Forecast(Struct, frozen=True, omit_defaults=True):
    """Forecast of the intervals after the series, nearest first; values are finite and at least 0."""

    mean: tuple[float, ...]
    upper: tuple[float, ...]
    """Forecast of ``ForecastKnobs.quantile``; at least ``mean``."""
    predictor: PredictorName
    """Predictor that produced the forecast."""
    fallback: Fallback = ""
    """Reason for using another predictor than the configured one; empty: it was used."""
    detail: str = ""
    """Description of the failure."""


def failed(forecasts: Iterable[Forecast | None]) -> list[Forecast]:
    """Return the last values in place of forecasts whose fit failed; flat and short series need no fit."""
    return [one for one in forecasts if one is not None and one.fallback in _FAILURES]
