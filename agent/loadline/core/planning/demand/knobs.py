"""Knobs by which traffic is divided into intervals, forecast and watched for surges."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.forecasts import ForecastKnobs


class TrafficKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of planners that size for traffic; names of Dynamo's, units added."""

    throughput_adjustment_interval_ms: Annotated[
        int,
        Meta(
            ge=10_000,
            le=86_400_000,
            description="The interval of the forecasts, and the longest time between two sizings. Where workers start"
            " faster, pools are sized as often as workers start, but at most every 10 s.",
        ),
    ] = 180_000
    busiest_ms: Annotated[
        int,
        Meta(ge=2_000, le=60_000, description="The load of an interval is that of its busiest part of this length."),
    ] = 30_000
    surge_window_ms: Annotated[
        int, Meta(ge=2_000, le=60_000, description="More traffic than planned for is noticed over this time.")
    ] = 10_000
    start_up_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="Time that a worker takes to start, until it has been observed.")
    ] = 60_000
    demand: Annotated[
        Literal["mean", "upper"], Meta(description="Size for the mean forecast of requests, or for its upper quantile.")
    ] = "mean"
    forecast: ForecastKnobs = ForecastKnobs()
