"""Knobs of planners that size pools for traffic."""

from typing import Annotated, Literal

from msgspec import Meta

from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.sizing.forecast_steps import STEP_MAX


class ThroughputKnobs(TrafficKnobs, frozen=True, forbid_unknown_fields=True):
    """Knobs of the throughput planner; names of Dynamo's, with units added."""

    replicas_step_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Most workers by which one forecast changes a pool.")
    ] = STEP_MAX
    attainment: Annotated[
        float,
        Meta(
            ge=0,
            le=0.999,
            description="Fraction of requests that must meet the objectives; 0: only their mean latencies must, as "
            "in Dynamo.",
        ),
    ] = 0.95
    no_correction: Annotated[
        bool, Meta(description="Use the profiles as they are; false: scale them by observed latencies.")
    ] = True


class QueueingKnobs(ThroughputKnobs, frozen=True, forbid_unknown_fields=True):
    """Knobs of the queueing planner, in addition to those of the throughput planner."""

    drain_ms: Annotated[
        int,
        Meta(
            ge=1_000, le=3_600_000, description="Time within which a backlog that has waited too long is to be served."
        ),
    ] = 60_000
    switching_cost_hours: Annotated[
        float,
        Meta(
            ge=0,
            le=1_000,
            description="Cost of starting or stopping a worker, in hours of its cost; for fleets of several GPU types.",
        ),
    ] = 0.1
    fitted: Annotated[
        Literal["never", "unprofiled", "always"],
        Meta(
            description="Which engine models are fitted to the iteration times that workers report, in place of a "
            "profile."
        ),
    ] = "unprofiled"
