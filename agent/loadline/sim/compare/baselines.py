"""What every user knows, as configurations made from one that is given: static peak, HPA and KPA.

A baseline has the pools, the bounds and the budget of that configuration, and its own planner with the settings by
which it is known. The guard stands aside: a baseline has rails of its own, and ours would make it another one.
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
"""Static peak: the busiest stretch of the trace has this length."""
PEAK_UTILISATION: Final = 0.75
"""Static peak: the share of that stretch that its workers are busy for. At 1 every burst within it makes a queue."""
_STEP_MAX: Final = 1_000_000
_NO_RAILS: Final = GuardrailKnobs(
    step_up_max=_STEP_MAX,
    step_down_max=_STEP_MAX,
    stabilisation_ms=0,
    cooldown_up_ms=0,
    cooldown_down_ms=0,
    warm_up_ms=0,
)


def baseline(name: str, settings: Settings, fleet: SimulatedFleetKnobs, trace: Trace) -> Settings:
    """The settings of a baseline, one of ``BASELINES``, made from those of a configuration.

    Raises:
        ConfigError: Fleet and configuration do not fit together.
        DataError: A profile cannot be used.
    """
    model = model_of(fleet, settings)
    changed = BASELINES[name](replace(model, guardrails=_NO_RAILS, no_operation=False), fleet, trace)
    return replace(settings, models=tuple(changed if one is model else one for one in settings.models))


def peak_replicas(
    pools: Mapping[str, SimulatedPool], model: ModelKnobs, trace: Trace, objectives: ObjectiveKnobs
) -> dict[str, int]:
    """Workers that are busy for ``PEAK_UTILISATION`` of the trace's busiest minute, by the work bound's arithmetic.

    A request's work counts in the minute in which it arrives. Of several pools of a role the cheapest takes all it may
    have workers for, then the next. Every pool keeps within its bounds.
    """
    arrived_s = np.array([one.arrival_s for one in trace.arrivals])
    bounds = {pool.name: (pool.replicas_min, pool.replicas_max) for pool in model.pools}
    counts: dict[str, int] = {}
    for role in sorted({pool.role for pool in pools.values()}):
        work = {
            name: worker_seconds(trace.arrivals, pool, objectives) for name, pool in pools.items() if pool.role == role
        }
        fits = {name: np.where(np.isfinite(seconds), seconds, 0.0) for name, seconds in work.items()}
        left = 1.0  # share of the role's work that has no workers yet
        for name in sorted(fits, key=lambda one: (pools[one].gpus_per_worker * float(fits[one].sum()), one)):
            least, most = bounds[name]
            needed = _busiest(arrived_s, fits[name]) / (PEAK_WINDOW_S * PEAK_UTILISATION)
            counts[name] = min(max(math.ceil(left * needed), least), most)
            left = max(0.0, left - counts[name] / needed) if needed else 0.0
    return counts


def _busiest(arrived_s: np.ndarray, seconds: np.ndarray) -> float:
    """The most work that arrives within one window; windows begin with an arrival."""
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
    """Its target concurrency is bounded by the mean requests that the smallest KV cache holds: more never run."""
    contexts = [one.isl_tokens + one.osl_tokens / 2 for one in trace.arrivals]
    mean_tokens = max(sum(contexts) / max(len(contexts), 1), 1.0)
    knobs = KpaKnobs()
    held = [
        pool.engine.kv_blocks_total * pool.engine.block_size_tokens / mean_tokens
        for pool in pools_of(fleet, model).values()
        if pool.role != "prefill"
    ]
    full = max(min(knobs.target_concurrency, *held), 1.0)
    return model.with_planner("kpa", replace(knobs, target_concurrency=full))


BASELINES: Final[dict[str, Callable[[ModelKnobs, SimulatedFleetKnobs, Trace], ModelKnobs]]] = {
    "static-peak": _static_peak,
    "hpa": _hpa,
    "kpa": _kpa,
}
"""Name -> what it makes of a model."""
