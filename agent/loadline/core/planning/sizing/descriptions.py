"""Sentences about sizing for traffic, for people."""

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.vocabulary.durations import duration


def describe_throughput(knobs: TrafficKnobs, objectives: ObjectiveKnobs, pool: PoolKnobs) -> str:
    """Return the objective that a pool is sized for, and how often."""
    ttft, itl = f"TTFT {objectives.ttft_ms:g} ms", f"ITL {objectives.itl_ms:g} ms"
    target = {"prefill": ttft, "decode": itl}.get(pool.role, f"{ttft} and {itl}")
    return (
        f"At least every {duration(knobs.throughput_adjustment_interval_ms)}, sizes for the forecast of the "
        f"{knobs.forecast.predictor} predictor within {target}; reacts at once to a surge over "
        f"{duration(knobs.surge_window_ms)}."
    )
