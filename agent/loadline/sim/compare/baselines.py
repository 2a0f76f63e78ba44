"""Baselines derived from a configuration: static peak, and the rules of other autoscalers.

A baseline has the pools, bounds and budget of that configuration, and its own planner with that planner's usual
settings. All other guardrails are disabled: a baseline has limits of its own, and ours would change its policy. Values
that the original's documentation tells users to calibrate are taken from the fleet, the objectives and the trace.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.guardrails.knobs import UNPACED
from loadline.core.planning.planners.baselines.apa import ApaKnobs
from loadline.core.planning.planners.baselines.hpa import HpaKnobs
from loadline.core.planning.planners.baselines.keda import KedaKnobs
from loadline.core.planning.planners.baselines.kpa import KpaKnobs
from loadline.core.planning.planners.saturation import SaturationKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.compare.bounds import worker_seconds
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPool, model_of, objectives_of, pools_of
from loadline.traces import Trace

PEAK_WINDOW_S: Final = 60.0
"""Length of the busiest interval of the trace, for static peak."""
PEAK_UTILISATION: Final = 0.75
"""Utilisation of the workers in that interval, for static peak. At 1 every burst within it causes a queue."""
_TAIL_SHARE: Final = 0.65


def baseline(name: str, settings: Settings, fleet: SimulatedFleetKnobs, trace: Trace) -> Settings:
    """Return the settings of a baseline, one of ``BASELINES``, derived from those of a configuration.

    Raises:
        ConfigError: Fleet and configuration do not fit together.
        DataError: A profile cannot be used.
    """
    model = model_of(fleet, settings)
    changed = BASELINES[name](replace(model, guardrails=UNPACED, no_operation=False), fleet, trace)
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
    knobs = KpaKnobs()
    target = max(min(knobs.target_concurrency, _requests_held(model, fleet, trace)), 1.0)
    return model.with_planner("kpa", replace(knobs, target_concurrency=target))


def _aibrix_kpa(model: ModelKnobs, fleet: SimulatedFleetKnobs, trace: Trace) -> ModelKnobs:
    """Return AIBrix's rules and settings.

    Windows, rates and cooldown are the defaults of ``pkg/controller/podautoscaler`` of vllm-project/aibrix at e3e10f9.
    The target of its samples is a KV usage of 0.5: half of the requests that a cache holds. A prefill worker has the 10
    waiting requests of ``samples/autoscaling/stormservice-pool.yaml``.
    """
    half = 0.5
    knobs = KpaKnobs(
        rules="aibrix",
        tick_interval_ms=10_000,
        stable_window_ms=180_000,
        panic_window_ratio=60 / 180,
        target_concurrency=max(_requests_held(model, fleet, trace), 1.0),
        prefill_target_concurrency=10.0 / half,
        target_utilization=half,
        max_scale_up_rate=2.0,
        scale_down_delay_ms=300_000,
    )
    return model.with_planner("kpa", knobs)


def _requests_held(model: ModelKnobs, fleet: SimulatedFleetKnobs, trace: Trace) -> float:
    """Return the mean requests of the trace that the smallest KV cache of a decoding worker holds."""
    contexts = [one.isl_tokens + one.osl_tokens / 2 for one in trace.arrivals]
    mean_tokens = max(sum(contexts) / max(len(contexts), 1), 1.0)
    return min(
        pool.engine.kv_blocks_total * pool.engine.block_size_tokens / mean_tokens
        for pool in pools_of(fleet, model).values()
        if pool.role != "prefill"
    )


def _apa(model: ModelKnobs, _fleet: SimulatedFleetKnobs, _trace: Trace) -> ModelKnobs:
    return model.with_planner("apa", ApaKnobs())


def _keda_queue(model: ModelKnobs, fleet: SimulatedFleetKnobs, _trace: Trace) -> ModelKnobs:
    return model.with_planner("keda", KedaKnobs("queue", start_up_ms=_start_up_ms(fleet)))


def _keda_saturation(model: ModelKnobs, fleet: SimulatedFleetKnobs, _trace: Trace) -> ModelKnobs:
    return model.with_planner("keda", KedaKnobs("saturation", start_up_ms=_start_up_ms(fleet)))


def _start_up_ms(fleet: SimulatedFleetKnobs) -> int:
    """Return the longest mean start delay: the guide sizes the window for growth near the cold-start time."""
    return round(1_000.0 * max(pool.start_delay.mean_s for pool in fleet.pools))


def _keda_tokens(model: ModelKnobs, fleet: SimulatedFleetKnobs, trace: Trace) -> ModelKnobs:
    """Calibrate as the README of ``keda-epp-token-aware`` of llm-d/llm-d does.

    The prefill rate is that of a pass of ``max_batched_tokens`` on an idle worker, in the slowest pool. The backlog is
    0.65 of the TTFT objective less the mean prompt at this rate: the README takes 60 to 70 % for a tail. An objective
    without room for a queue leaves a tenth of it.
    """
    pools, ttft_s = pools_of(fleet, model).values(), objectives_of(fleet, model).ttft_ms / 1_000.0
    rates = [
        1_000.0 * pool.engine.max_batched_tokens / pool.timing.prefill_ms(pool.engine.max_batched_tokens)
        for pool in pools
        if pool.role != "decode"
    ]
    isl_tokens = sum(one.isl_tokens for one in trace.arrivals) / max(len(trace.arrivals), 1)
    backlog_s = max(_TAIL_SHARE * (ttft_s - isl_tokens / min(rates)), ttft_s / 10.0)
    return model.with_planner("keda", KedaKnobs("tokens", prefill_tokens_per_s=min(rates), backlog_s=backlog_s))


def _keda_latency(model: ModelKnobs, fleet: SimulatedFleetKnobs, _trace: Trace) -> ModelKnobs:
    """Scale by the objectives that the requests are measured against."""
    objectives = objectives_of(fleet, model)
    return replace(
        model.with_planner("keda", KedaKnobs("latency")),
        objectives=replace(model.effective_objectives, ttft_ms=objectives.ttft_ms, itl_ms=objectives.itl_ms),
    )


def _wva(model: ModelKnobs, _fleet: SimulatedFleetKnobs, _trace: Trace) -> ModelKnobs:
    return model.with_planner("saturation", SaturationKnobs(profile="upstream"))


BASELINES: Final[dict[str, Callable[[ModelKnobs, SimulatedFleetKnobs, Trace], ModelKnobs]]] = {
    "static-peak": _static_peak,
    "hpa": _hpa,
    "kpa": _kpa,
    "keda-queue": _keda_queue,
    "keda-saturation": _keda_saturation,
    "keda-tokens": _keda_tokens,
    "keda-latency": _keda_latency,
    "aibrix-kpa": _aibrix_kpa,
    "aibrix-apa": _apa,
    "wva": _wva,
}
"""Name -> function that returns the model's settings under the baseline."""
USUAL_BASELINES: Final = ("static-peak", "hpa", "kpa")
"""Baselines of a comparison that names none: more would take as long as the configurations themselves."""
