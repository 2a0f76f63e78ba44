"""Evaluate: run the planner of a model, and find the temporary bounds of its pools."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from loadline.core.planning.encode_pools import EncodePools, as_seen_by
from loadline.core.planning.guardrails.constraints import NO_BOUNDS, Bound
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
    failed = any(reason.code is ReasonCode.PLANNER_FAILED for reason in recommendation.reasons)
    return Evaluation(model, recommendation, _bounds(context, model, recommendation, now), effects, failed)


def _run_planner(context: ScalingContext, model: ModelState, now: int) -> tuple[Recommendation, list[Effect]]:
    planner = context.planners[model.name]
    forecasts, model.forecasts = model.forecasts, []
    try:
        for forecast in forecasts:
            planner.ingest_forecast(forecast)
        seen = as_seen_by(planner, model)
        recommendation, wake_ms, request = planner.plan(seen, now), planner.next_wake(), planner.forecast_request()
        if seen is not model:
            encode = model.encode = model.encode or EncodePools()
            recommendation, wake_ms = encode.add_to(recommendation, model, now), min(wake_ms, encode.next_wake())
    except Exception as fault:  # noqa: BLE001 - any exception would stop all models, and again after a restart
        return context.fail(model, fault, now)
    model.plan_at_ms = wake_ms
    if request is None:
        return recommendation, []
    context.state.forecast_requests[model.name] = request.request
    return recommendation, [FitForecast(model.name, request.request, request.queries)]


def _bounds(
    context: ScalingContext, model: ModelState, recommendation: Recommendation, now: int
) -> Mapping[str, Bound]:
    """Return the temporary bounds of a model that may scale to zero."""
    if all(pool.knobs.replicas_min for pool in model.pools.values()):
        return NO_BOUNDS
    idle, after_ms = model.idle, context.models[model.name].scale_to_zero_after_ms
    if any(pool.schedule_minimum.replicas for pool in model.pools.values()):
        after_ms = 0  # no scale to zero while a schedule is active
    idle.observe(model, now)
    idle_at_ms = idle.idle_at_ms(after_ms)
    if idle_at_ms is not None and idle_at_ms > now:
        model.plan_at_ms = min(model.plan_at_ms, idle_at_ms)
    return idle.bounds(model, recommendation.targets, after_ms, now)
