"""Handlers of a reloaded configuration."""

from collections.abc import Mapping
from typing import Final

from loadline.core.fleet.moved_workers import recount_moved
from loadline.core.handlers import removed_pools
from loadline.core.handlers.decisions import withdraw, within_bounds
from loadline.core.handlers.turn import Turn
from loadline.core.planning.planners import Planner
from loadline.core.state.agent_state import AgentState, replacing_planner
from loadline.core.state.model_state import ModelState, accelerator_of, engine_of, hard_limits, new_model, new_pool
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import SettingsRefused

_DETAIL_MAX: Final = 1_000
"""Largest number of characters of a problem in the state and in an alarm."""


def settings_refused(turn: Turn, event: SettingsRefused) -> list[Effect]:
    """Keep the current settings, and raise an alarm."""
    turn.state.config_problem = event.detail[:_DETAIL_MAX]
    turn.state.count("settings_refused")
    return [RaiseAlarm("settings_refused", "", turn.state.config_problem)]


def settings_changed(turn: Turn, planners: dict[str, Planner], settings: Settings) -> dict[str, Planner]:
    """Apply new settings.

    Models and pools that remain configured keep their state. For new models, registered workers are assigned and the
    decisions are read again. Of removed models, only the sequence of their decisions is kept; of removed pools, their
    counts and drains for a while.

    Returns:
        The planners by model; a model with the same kind of planner keeps its planner.
    """
    state = turn.state
    state.fleet.knobs, state.ledger.knobs, state.drains.knobs = settings.fleet, settings.decisions, settings.drain
    known = dict.fromkeys(state.fleet.models)
    models = {
        knobs.name: _update_model(turn, settings, knobs, planners)
        if knobs.name in known
        else new_model(settings, knobs)
        for knobs in settings.models
    }
    for name in sorted(known.keys() - models.keys()):
        state.remove_model(name)
        turn.remove_model(name)
    state.fleet.models = models
    for model in models.values():
        recount_moved(model.pools, turn.now)
    state.drains.remove_unconfigured(state.fleet)
    state.fleet.divide_workers()
    state.fleet.assign_unassigned(turn.now)
    removed_pools.restore(turn)
    for model in state.fleet.models.values():
        model.plan_at_ms = model.migration.due_ms = turn.now
    for name in list(state.ledger.live):
        decision = state.ledger.entries[name].decision
        if decision is not None and not within_bounds(state, decision):
            withdraw(state, name, turn.now)
            state.fleet.models[name].reconcile = True  # a new decision announces the counts within the bounds
    added = state.fleet.models.keys() - known.keys()
    turn.learned.update(dict.fromkeys(sorted(added & state.stored.keys())))
    if added and state.leading:
        state.reread_decisions(turn.now)
    turn.mark_all_changed()
    state.apply_settings(settings)
    state.count("settings_changed")
    return {knobs.name: _planner(state, planners.get(knobs.name), settings, knobs) for knobs in settings.models}


def report_unmanaged(state: AgentState, before: Mapping[str, int]) -> list[Effect]:
    """Return an alarm for each model of which new settings leave workers without a pool.

    Args:
        state: The state with the new settings.
        before: Number of workers without a pool, by model, before these.
    """
    text = (
        "{} registered workers have no pool in the new configuration: they run on, and are neither scaled nor drained"
    )
    counts = state.fleet.unassigned.counts
    left = {model: count - before.get(model, 0) for model, count in sorted(counts.items())}
    return [RaiseAlarm("workers_unmanaged", model, text.format(count)) for model, count in left.items() if count > 0]


def _update_model(turn: Turn, settings: Settings, knobs: ModelKnobs, planners: dict[str, Planner]) -> ModelState:
    """Apply new settings to a known model; a pool whose role changed is replaced."""
    state, now, fleet = turn.state, turn.now, settings.fleet
    model = state.fleet.models[knobs.name]
    model.objectives, model.has_objectives = knobs.effective_objectives, knobs.objectives is not None
    model.guardrails.apply_settings(knobs.effective_guardrails, hard_limits(settings, knobs))
    model.traffic.apply_settings(fleet.traffic_window_ms, fleet.frontends_max, fleet.stale_after_ms)
    roles = {pool.name: pool.role for pool in knobs.pools}
    for name, pool in list(model.pools.items()):
        if roles.get(name) != pool.knobs.role:
            removed_pools.keep(turn, model, pool)
            state.fleet.unassign(model.pools.pop(name))
            model.guardrails.history.pop(name, None)
            state.gpus.forget(knobs.name)
            planners[knobs.name].forget_pool(name)
            if model.encode is not None:
                model.encode.forget_pool(name)
    for one in knobs.pools:
        if one.name in model.pools:
            engine, accelerator = engine_of(settings, knobs.name, one.name), accelerator_of(settings, one)
            model.pools[one.name].apply_settings(one, engine, accelerator, now)
        else:
            model.pools[one.name] = new_pool(settings, knobs.name, one)
    model.pools = {one.name: model.pools[one.name] for one in knobs.pools}
    return model


def _planner(state: AgentState, planner: Planner | None, settings: Settings, knobs: ModelKnobs) -> Planner:
    if planner is None or planner.name != knobs.planner:
        return replacing_planner(state, settings, knobs)
    planner.apply_settings(knobs.knobs)
    return planner
