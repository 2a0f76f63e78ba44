"""Thresholds that contradict each other, or that no load ever crosses."""

from collections.abc import Iterator

from loadline.config.knobs import Config
from loadline.core.planning.planners.saturation import SaturationKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError


def check_thresholds(model: ModelKnobs, place: str) -> None:
    """See that those of the threshold planner leave a gap.

    Raises:
        ConfigError: They do not.
    """
    knobs = model.threshold
    for signal, up, down in (
        ("prefill_queue", knobs.prefill_queue_scale_up_threshold, knobs.prefill_queue_scale_down_threshold),
        ("decode_kv", knobs.decode_kv_scale_up_threshold, knobs.decode_kv_scale_down_threshold),
    ):
        if up <= down:
            problem = f"{up:g} is not above {signal}_scale_down_threshold {down:g}"
            raise ConfigError(f"{place}.{signal}_scale_up_threshold", problem, "Keep a gap, or the fleet will swing.")


def check_saturation(knobs: SaturationKnobs, place: str) -> None:
    """See that those of the saturation planner leave a gap, and something to spare.

    Raises:
        ConfigError: They do not.
    """
    if knobs.scale_up_threshold <= knobs.scale_down_boundary:
        problem = f"{knobs.scale_up_threshold:g} is not above scale_down_boundary {knobs.scale_down_boundary:g}"
        raise ConfigError(f"{place}.scale_up_threshold", problem, "Keep a gap, or the fleet will swing.")
    if knobs.kv_spare_trigger > knobs.kv_cache_threshold:
        problem = f"{knobs.kv_spare_trigger:g} is above kv_cache_threshold {knobs.kv_cache_threshold:g}"
        raise ConfigError(f"{place}.kv_spare_trigger", problem, "Lower it: so much is never spare.")


def check_hybrid(model: ModelKnobs, place: str) -> None:
    """See that saturation can tell whether a shrink is safe.

    Raises:
        ConfigError: It cannot, or its thresholds leave no gap.
    """
    check_saturation(model.hybrid.saturation, f"{place}.saturation")
    if model.hybrid.saturation.profile == "upstream":
        problem = '"upstream" does not say whether a shrink is safe'
        raise ConfigError(f"{place}.saturation.profile", problem, 'Leave it out, or set planner = "saturation".')


def saturation_warnings(knobs: SaturationKnobs, place: str) -> Iterator[str]:
    """Those of the saturation planner that have no effect."""
    if knobs.profile == "upstream" and knobs.capacity == "tokens":
        yield (
            f'{place}.capacity: "tokens" has no effect, as profile = "upstream" goes by KV usage and queues. '
            "Leave one of the two out."
        )


def threshold_warnings(config: Config, model: ModelKnobs, place: str) -> Iterator[str]:
    """Those of the threshold planner that have no effect, a sentence each."""
    knobs, roles = model.threshold, {pool.role for pool in model.pools}
    pulling_ms, adjustment_ms = knobs.metric_pulling_interval_ms, knobs.adjustment_interval_ms
    if adjustment_ms < pulling_ms:
        yield (
            f"{place}.adjustment_interval_ms: a window of {adjustment_ms} ms holds no second sample, as one is taken "
            f"every {pulling_ms} ms. Set it to several times metric_pulling_interval_ms."
        )
    if config.fleet.stale_after_ms < pulling_ms:
        yield (
            f"fleet.stale_after_ms: {config.fleet.stale_after_ms} ms is less than metric_pulling_interval_ms "
            f"{pulling_ms}, so workers go stale between two samples. "
            "Set it to several times the interval of the workers' reports."
        )
    if roles & {"decode", "aggregated"}:
        up, each = knobs.decode_kv_scale_up_threshold, knobs.waiting_request_kv_ratio
        if each == 0 and up >= 1:
            yield (
                f"{place}.decode_kv_scale_up_threshold: KV load is at most 1 while waiting_request_kv_ratio is 0, "
                f"so {up:g} never fires. Set 0.9 or so, or a ratio above 0."
            )
        elif up > 1:
            yield (
                f"{place}.decode_kv_scale_up_threshold: {up:g} fires only with {(up - 1) / each:.0f} requests "
                "waiting at every worker whose KV cache is full. Set 0.9 or so."
            )
        if knobs.decode_kv_scale_down_threshold == 0:
            yield (
                f"{place}.decode_kv_scale_down_threshold: KV load is never below 0, so the pool never shrinks. "
                "Set 0.5 or so."
            )
    if roles & {"prefill", "aggregated"} and knobs.prefill_queue_scale_down_threshold == 0:
        yield (
            f"{place}.prefill_queue_scale_down_threshold: a queue is never below 0, so the pool never shrinks. "
            "Set 0.2 or so."
        )
