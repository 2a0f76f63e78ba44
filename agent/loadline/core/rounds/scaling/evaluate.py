"""Evaluate: run the planner of a model, and find the temporary bounds of its pools."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from loadline.core.planning.encode_pools import EncodePools, as_seen_by
from loadline.core.planning.guardrails.constraints import NO_BOUNDS, Bound
from loadline.core.planning.planner import ForecastRequest
from loadline.core.planning.planners import BUILT_IN
from loadline.core.planning.plugin_values import plain_copy, plain_recommendation, state_fault
from loadline.core.rounds.scaling.context import ScalingContext
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary.effects import Effect, FitForecast
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation


class Evaluation(Struct, frozen=True):
    """Recommendation for one model, before limits."""

    model: ModelState
    recommendation: Recommendation
    bounds: Mapping[str, Bound]
    effects: Sequence[Effect]
    """Forecasts to fit, and alarms."""
    failed: bool


def evaluate(context: ScalingContext, name: str, now: int) -> Evaluation:
    """Refresh the totals of a model at ``now`` (ms) and run its planner. A planner that fails holds its model only."""
    state = context.state
    model = state.fleet.models[name]
    if model.plan_at_ms <= now:
        model.expire_silent(now, state.fleet.knobs)
        state.fleet.admit_waiting(model, now)
    model.refresh_totals(now, state.fleet.knobs)
    schedule_changes_at_ms = context.schedules[name].refresh(model, now)
    recommendation, effects = _run_planner(context, model, now)
    if schedule_changes_at_ms is not None:
        model.plan_at_ms = min(model.plan_at_ms, schedule_changes_at_ms)
    bounds: Mapping[str, Bound] = NO_BOUNDS
    if not all(pool.knobs.replicas_min for pool in model.pools.values()):
        idle_after_ms = _idle_after_ms(context, model)
        _observe_idle(model, idle_after_ms, now)
        bounds = model.idle.bounds(model, recommendation.targets, idle_after_ms, now)
    failed = any(reason.code is ReasonCode.PLANNER_FAILED for reason in recommendation.reasons)
    return Evaluation(model, recommendation, bounds, effects, failed)


def _run_planner(context: ScalingContext, model: ModelState, now: int) -> tuple[Recommendation, list[Effect]]:
    planner = context.planners[model.name]
    is_plugin = type(planner) not in BUILT_IN
    fault: Exception | None = None
    forecasts, model.forecasts = model.forecasts, []
    try:
        for forecast in forecasts:
            planner.ingest_forecast(forecast)
        seen = as_seen_by(planner, model)
        recommendation, wake_ms = planner.plan(seen, now), planner.next_wake()
        if is_plugin:
            recommendation, wake_ms = plain_recommendation(recommendation, seen.pools.keys()), int(wake_ms)
        if seen is not model:
            encode = model.encode = model.encode or EncodePools()
            recommendation, wake_ms = encode.add_to(recommendation, model, now), min(wake_ms, encode.next_wake())
        request = planner.forecast_request()  # last: it is returned once, and awaited until it is answered
        if request is not None and is_plugin:
            request = plain_copy(request, ForecastRequest)
    except Exception as raised:  # noqa: BLE001 - any exception would stop all models, and again after a restart
        fault = raised
    if is_plugin and (lost := state_fault(planner)) is not None:  # the next snapshot would end the agent
        context.replace_planner(model.name)
        fault = fault or lost
    if fault is not None:
        return context.fail(model, fault, now)
    model.plan_at_ms = wake_ms
    if request is None:
        return recommendation, []
    context.state.forecast_requests[model.name] = request.request
    return recommendation, [FitForecast(model.name, request.request, request.queries)]


def _idle_after_ms(context: ScalingContext, model: ModelState) -> int:
    """Return the idle time after which a model scales to zero; 0: never, as while a schedule is active."""
    if any(pool.schedule_minimum.replicas for pool in model.pools.values()):
        return 0
    return context.models[model.name].scale_to_zero_after_ms


def _observe_idle(model: ModelState, idle_after_ms: int, now: int) -> None:
    """Record if a model has work, and have it planned again when it scales to zero if it stays idle."""
    model.idle.observe(model, now)
    idle_at_ms = model.idle.idle_at_ms(idle_after_ms)
    if idle_at_ms is not None and idle_at_ms > now:
        model.plan_at_ms = min(model.plan_at_ms, idle_at_ms)
