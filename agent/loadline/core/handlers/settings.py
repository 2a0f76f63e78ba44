"""New settings for an agent that goes on: what is known stays known, and what was made from the old ones follows."""

from typing import Final

from loadline.core.fleet.fleet import Model
from loadline.core.handlers.decisions import within_bounds
from loadline.core.handlers.turn import Turn
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.planners import Planner
from loadline.core.state.agent_state import (
    AgentState,
    accelerator_of,
    engine_of,
    knobs_of,
    limits_of,
    new_model,
    new_planner,
    new_pool,
)
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import SettingsRefused

_DETAIL_MAX: Final = 1_000
"""Characters of a problem that are kept."""


def settings_refused(turn: Turn, event: SettingsRefused) -> list[Effect]:
    """Go on as before, and tell people."""
    turn.state.config_problem = event.detail[:_DETAIL_MAX]
    turn.state.count("settings_refused")
    return [RaiseAlarm("settings_refused", "", turn.state.config_problem)]


def settings_changed(turn: Turn, planners: dict[str, Planner], settings: Settings) -> dict[str, Planner]:
    """Go by these settings from now on.

    Models and pools that stay keep what is believed and remembered of them, so a fleet does not move for it. Of those
    that are new, the workers that have registered are known already, and the decisions are read again. Of those that
    are gone nothing is kept but the sequence of their decisions; what is in the store stays there.

    Returns:
        The planners: that of a model is a new one only if it is of another kind.
    """
    state, before = turn.state, turn.state.fleet.models
    state.fleet.knobs, state.ledger.knobs, state.drains.knobs = settings.fleet, settings.decisions, settings.drain
    state.fleet.models = {
        knobs.name: _model(turn, settings, knobs, planners) if knobs.name in before else new_model(settings, knobs)
        for knobs in settings.models
    }
    for name in sorted(before.keys() - state.fleet.models.keys()):
        _part_with(turn, before[name])
    state.drains.forget(state.fleet)
    state.fleet.assign_unassigned(turn.now)
    state.guards = {knobs.name: _guard(state, settings, knobs) for knobs in settings.models}
    state.due = dict.fromkeys(state.fleet.models, turn.now)
    state.migration.due = dict.fromkeys(state.migration.due, turn.now)
    for name in list(state.ledger.live):
        decision = state.ledger.entries[name].decision
        if decision is not None and not within_bounds(state, decision):
            state.ledger.silence(name)
            state.renewals[name] = None  # as far as it is still within them
    added = state.fleet.models.keys() - before.keys()
    turn.learned.update(dict.fromkeys(sorted(added & state.stored.keys())))
    if added and state.leading:
        state.read_again(turn.now)
    turn.change_all()
    state.count("settings_changed")
    return {knobs.name: _planner(state, planners.get(knobs.name), settings, knobs) for knobs in settings.models}


def _model(turn: Turn, settings: Settings, knobs: ModelKnobs, planners: dict[str, Planner]) -> Model:
    """A model that stays."""
    state, now, fleet = turn.state, turn.now, settings.fleet
    model = state.fleet.models[knobs.name]
    model.objectives = knobs.objectives
    model.traffic.apply_settings(fleet.traffic_window_ms, fleet.frontends_max, fleet.stale_after_ms)
    roles = {pool.name: pool.role for pool in knobs.pools}
    for name, pool in list(model.pools.items()):
        if roles.get(name) != pool.knobs.role:
            state.fleet.unassign(model.pools.pop(name))
            state.guards[knobs.name].history.pop(name, None)
            state.gpus.forget(knobs.name)
            planners[knobs.name].forget(name)
    for one in knobs.pools:
        if one.name in model.pools:
            engine, accelerator = engine_of(settings, knobs.name, one.name), accelerator_of(settings, one)
            model.pools[one.name].apply_settings(one, engine, accelerator, now)
        else:
            model.pools[one.name] = new_pool(settings, knobs.name, one)
    model.pools = {one.name: model.pools[one.name] for one in knobs.pools}
    return model


def _part_with(turn: Turn, model: Model) -> None:
    """A model that goes."""
    state, name = turn.state, model.name
    for pool in model.pools.values():
        state.fleet.unassign(pool)
    state.ledger.retire(name)
    state.gpus.forget(name)
    state.migration.forget(name)
    turn.forget(name)
    of_model = (state.answers, state.saved_at_ms, state.sleeps, state.renewals, state.failing, state.holds)
    for remembered in (*of_model, state.conditions):
        remembered.pop(name, None)


def _guard(state: AgentState, settings: Settings, knobs: ModelKnobs) -> Guardrails:
    limits, guard = limits_of(settings, knobs), state.guards.get(knobs.name)
    if guard is None:
        return Guardrails(knobs.guardrails, limits)
    guard.apply_settings(knobs.guardrails, limits)
    return guard


def _planner(state: AgentState, planner: Planner | None, settings: Settings, knobs: ModelKnobs) -> Planner:
    if planner is None or planner.name != knobs.planner:
        planner = new_planner(settings, knobs)
        planner.follow(state.requests.get(knobs.name, 0))
        return planner
    planner.obey(knobs_of(knobs))
    return planner
