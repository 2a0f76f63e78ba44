"""Knobs of traffic intervals, forecasts and surge detection."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.forecasts import ForecastKnobs


class TrafficKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of planners that size for traffic; Dynamo's names with units added."""

    throughput_adjustment_interval_ms: Annotated[
        int,
        Meta(
            ge=10_000,
            le=86_400_000,
            description="Interval of the forecasts, and maximum time between two sizings. If workers start faster than"
            " that, pools are sized once per start-up time, but at most every 10 s.",
        ),
    ] = 180_000
    busiest_ms: Annotated[
        int,
        Meta(
            ge=2_000, le=60_000, description="The load of an interval is the load of its busiest part of this length."
        ),
    ] = 30_000
    surge_window_ms: Annotated[
        int, Meta(ge=2_000, le=60_000, description="Window in which traffic above the planned level is detected.")
    ] = 10_000
    start_up_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="Start-up time of a worker, until one has been observed.")
    ] = 60_000
    demand: Annotated[
        Literal["mean", "upper"], Meta(description="Size for the mean forecast of requests, or for its upper quantile.")
    ] = "mean"
    forecast: ForecastKnobs = ForecastKnobs()
