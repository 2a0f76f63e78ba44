"""Series of load, what a predictor is asked, and what it answers.

The knobs of the predictors are here and not beside the predictors: a question is complete, so that whoever performs it,
a child process or a simulation, needs nothing but the question.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

POINTS_MAX = 4_096  # two weeks of five minutes; 40 kB of JSON
HORIZON_MAX = 288  # a day of five minutes
DAY_MS = 86_400_000

PredictorName = Literal["constant", "kalman", "arima", "prophet", "seasonal"]
AnyPredictor = Literal[PredictorName, "auto"]
Fallback = Literal["", "flat", "points", "failed", "not_finite", "absurd", "late", "away"]

_Variance = Annotated[float, Meta(gt=0, le=1e12)]


class Series(Struct, frozen=True):
    """Values of a regular interval, oldest first: None is not known, nor is a NaN or what is negative; 0 is idle."""

    values: Annotated[tuple[float | None, ...], Meta(max_length=POINTS_MAX)]
    interval_ms: Annotated[int, Meta(ge=1, le=86_400_000)]
    end_ms: int = 0
    """End of the last interval, Unix ms."""


class History(Struct, frozen=True):
    """The load of a model, in three series of the same intervals."""

    requests: Series
    isl_tokens: Series
    """Mean over the requests of the interval."""
    osl_tokens: Series
    ends_at_ms: Annotated[int, Meta(ge=0, lt=DAY_MS)] | None = None
    """Time of day, UTC, at which it ends; None: whenever it is taken up."""


class KalmanKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the Kalman filter: variances, of which only the ratios matter."""

    q_level: Annotated[_Variance, Meta(description="Variance of what the level does in an interval.")] = 1.0
    q_trend: Annotated[_Variance, Meta(description="Variance of what the trend does in an interval.")] = 0.1
    r: Annotated[_Variance, Meta(description="Variance of a measurement.")] = 10.0


class ArimaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of ARIMA. Choosing an order takes seconds where a fit takes a twentieth of one."""

    points: Annotated[int, Meta(ge=24, le=POINTS_MAX, description="Newest points that it is fitted on.")] = 288
    order_intervals: Annotated[
        int, Meta(ge=1, le=POINTS_MAX, description="The order is chosen again after so many intervals.")
    ] = 96


class ProphetKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of Prophet."""

    points: Annotated[int, Meta(ge=5, le=POINTS_MAX, description="Newest points that it is fitted on.")] = 1_008


class SeasonalKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the seasonal regression."""

    season_s: Annotated[
        int, Meta(ge=60, le=604_800, description="After so long the load repeats; it takes more than one of it to see.")
    ] = 86_400
    points: Annotated[int, Meta(ge=24, le=POINTS_MAX, description="Newest points that it is fitted on.")] = 1_008


class AutoKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the choice between predictors."""

    candidates: Annotated[
        tuple[PredictorName, ...],
        Meta(min_length=1, max_length=5, description="Those to choose from; of equals the first is taken."),
    ] = ("seasonal", "constant")
    origins: Annotated[
        int, Meta(ge=2, le=200, description="Past moments at which each is scored, spread over the newest season.")
    ] = 24


class ForecastKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of forecasts. A predictor's own knobs are the field of its name."""

    predictor: Annotated[
        AnyPredictor, Meta(description="Which predictor; auto: the one with the lowest past loss.")
    ] = "auto"
    quantile: Annotated[
        float, Meta(ge=0.5, le=0.999, description="The upper forecast is exceeded in so much less than all cases.")
    ] = 0.9
    min_points: Annotated[
        int, Meta(ge=1, le=POINTS_MAX, description="Until so many points are known, the last one is the forecast.")
    ] = 5
    log1p: Annotated[
        bool, Meta(description="Forecast log(1 + x), for load that grows by factors; not needed by seasonal.")
    ] = False
    kalman: KalmanKnobs = KalmanKnobs()
    arima: ArimaKnobs = ArimaKnobs()
    prophet: ProphetKnobs = ProphetKnobs()
    seasonal: SeasonalKnobs = SeasonalKnobs()
    auto: AutoKnobs = AutoKnobs()


class ForecastQuery(Struct, frozen=True):
    """What a predictor is asked: the next ``horizon`` intervals of a series."""

    series: Series
    horizon: Annotated[int, Meta(ge=1, le=HORIZON_MAX)]
    knobs: ForecastKnobs = ForecastKnobs()


class Forecast(Struct, frozen=True, omit_defaults=True):
    """Values of the intervals that follow the series, nearest first; never negative, always finite."""

    mean: tuple[float, ...]
    upper: tuple[float, ...]
    """The quantile that was asked for; never below ``mean``."""
    predictor: PredictorName
    """Which made it."""
    fallback: Fallback = ""
    """Why it is not the one that was asked for."""
    detail: str = ""
    """What failed, in words."""
