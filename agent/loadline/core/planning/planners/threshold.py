"""The threshold planner."""

from typing import Annotated

from msgspec import Meta, Struct

Threshold = Annotated[float, Meta(ge=0)]


class ThresholdKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the threshold planner; names and defaults of Dynamo's load planner, units added."""

    metric_pulling_interval_ms: Annotated[int, Meta(ge=10, description="Time between two samples of the windows.")] = (
        1_000
    )
    adjustment_interval_ms: Annotated[
        int, Meta(ge=10, description="Length of the windows; least time between changes.")
    ] = 30_000
    prefill_queue_scale_up_threshold: Annotated[
        Threshold, Meta(description="Mean queued prefills above which to add.")
    ] = 0.5
    prefill_queue_scale_down_threshold: Annotated[
        Threshold, Meta(description="Mean queued prefills below which to take.")
    ] = 0.2
    decode_kv_scale_up_threshold: Annotated[Threshold, Meta(description="Mean KV load above which to add.")] = 0.9
    decode_kv_scale_down_threshold: Annotated[Threshold, Meta(description="Mean KV load below which to take.")] = 0.5
    waiting_request_kv_ratio: Annotated[Threshold, Meta(description="KV load added for each waiting request.")] = 0.02
    new_decode_worker_grace_intervals: Annotated[
        int, Meta(ge=0, description="Intervals without removal after an addition.")
    ] = 3
    prefill_queue_trend_intervals: Annotated[
        int, Meta(ge=0, description="Intervals until a new prefill worker is of use.")
    ] = 3
