"""Baselines derived from a configuration: static peak, HPA and KPA.

A baseline has the pools, bounds and budget of that configuration, and its own planner with that planner's usual
settings. All other guardrails are disabled: a baseline has limits of its own, and ours would change its policy.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.hpa import HpaKnobs
from loadline.core.planning.planners.kpa import KpaKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.compare.bounds import worker_seconds
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPool, model_of, objectives_of, pools_of
from loadline.traces import Trace

PEAK_WINDOW_S: Final = 60.0
"""Length of the busiest interval of the trace, for static peak."""
PEAK_UTILISATION: Final = 0.75
"""Utilisation of the workers in that interval, for static peak. At 1 every burst within it causes a queue."""
_STEP_MAX: Final = 1_000_000
_NO_GUARDRAILS: Final = GuardrailKnobs(
    step_up_max=_STEP_MAX,
    step_down_max=_STEP_MAX,
    stabilisation_ms=0,
    cooldown_up_ms=0,
    cooldown_down_ms=0,
    warm_up_ms=0,
)


def baseline(name: str, settings: Settings, fleet: SimulatedFleetKnobs, trace: Trace) -> Settings:
    """Return the settings of a baseline, one of ``BASELINES``, derived from those of a configuration.

    Raises:
        ConfigError: Fleet and configuration do not fit together.
        DataError: A profile cannot be used.
    """
    model = model_of(fleet, settings)
    changed = BASELINES[name](replace(model, guardrails=_NO_GUARDRAILS, no_operation=False), fleet, trace)
    return replace(settings, models=tuple(changed if one is model else one for one in settings.models))


def peak_replicas(
    pools: Mapping[str, SimulatedPool], model: ModelKnobs, trace: Trace, objectives: ObjectiveKnobs
) -> dict[str, int]:
    """Return the workers per pool that are busy for ``PEAK_UTILISATION`` of the busiest minute of the trace.

    The work of a request is that of the work bound, and counts in the minute in which the request arrives. Pools of
    one role are filled in the order of their GPU time, each up to its maximum; every pool stays within its bounds.
    """
    arrived_s = np.array([one.arrival_s for one in trace.arrivals])
    bounds = {pool.name: (pool.replicas_min, pool.replicas_max) for pool in model.pools}
    counts: dict[str, int] = {}
    for role in sorted({pool.role for pool in pools.values()}):
        work = {
            name: worker_seconds(trace.arrivals, pool, objectives) for name, pool in pools.items() if pool.role == role
        }
        fits = {name: np.where(np.isfinite(seconds), seconds, 0.0) for name, seconds in work.items()}
        left = 1.0  # fraction of the role's work without workers
        for name in sorted(fits, key=lambda one: (pools[one].gpus_per_worker * float(fits[one].sum()), one)):
            replicas_min, replicas_max = bounds[name]
            needed = _busiest(arrived_s, fits[name]) / (PEAK_WINDOW_S * PEAK_UTILISATION)
            counts[name] = min(max(math.ceil(left * needed), replicas_min), replicas_max)
            left = max(0.0, left - counts[name] / needed) if needed else 0.0
    return counts


def _busiest(arrived_s: np.ndarray, seconds: np.ndarray) -> float:
    """Return the maximum work that arrives within one window; windows begin with an arrival."""
    total = np.concatenate(([0.0], np.cumsum(seconds)))
    ends = np.searchsorted(arrived_s, arrived_s + PEAK_WINDOW_S)
    return float((total[ends] - total[:-1]).max(initial=0.0))


def _static_peak(model: ModelKnobs, fleet: SimulatedFleetKnobs, trace: Trace) -> ModelKnobs:
    pools = pools_of(fleet, model)
    replicas = peak_replicas(pools, model, trace, objectives_of(fleet, model))
    return model.with_planner("static", StaticKnobs(replicas))


def _hpa(model: ModelKnobs, _fleet: SimulatedFleetKnobs, _trace: Trace) -> ModelKnobs:
    return model.with_planner("hpa", HpaKnobs())


def _kpa(model: ModelKnobs, fleet: SimulatedFleetKnobs, trace: Trace) -> ModelKnobs:
    """Limit the target concurrency to the mean number of requests that the smallest KV cache holds."""
    contexts = [one.isl_tokens + one.osl_tokens / 2 for one in trace.arrivals]
    mean_tokens = max(sum(contexts) / max(len(contexts), 1), 1.0)
    knobs = KpaKnobs()
    concurrency = [
        pool.engine.kv_blocks_total * pool.engine.block_size_tokens / mean_tokens
        for pool in pools_of(fleet, model).values()
        if pool.role != "prefill"
    ]
    target = max(min(knobs.target_concurrency, *concurrency), 1.0)
    return model.with_planner("kpa", replace(knobs, target_concurrency=target))


BASELINES: Final[dict[str, Callable[[ModelKnobs, SimulatedFleetKnobs, Trace], ModelKnobs]]] = {
    "static-peak": _static_peak,
    "hpa": _hpa,
    "kpa": _kpa,
}
"""Name -> function that returns the model's settings under the baseline."""
