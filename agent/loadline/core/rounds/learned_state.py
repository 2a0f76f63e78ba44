"""Learned state of models: import from the store, and export to it. No decision waits for it."""

from collections.abc import Iterable, Mapping
from typing import Final

from loadline.core.planning.planners import Planner
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.effects import SaveLearned
from loadline.core.vocabulary.learned import DATA_BYTES_MAX, LearnedState

COMPARE_INTERVAL_MS: Final = 1_000
"""Interval at which one model is compared with the store, so that a turn exports at most one."""
SAVE_INTERVAL_MS: Final = 60_000
"""Minimum time between two writes for one model; a failed or unknown write is repeated after it."""


def ingest(state: AgentState, planners: Mapping[str, Planner], models: Iterable[str]) -> None:
    """Import the stored learned state of some models, except where this agent has learned its own.

    What a leader has measured or scalers have told it, and the learned state of a planner, are not replaced.
    """
    for name in models:
        learned = state.stored[name]
        for pool in state.fleet.models[name].pools.values():
            start_ups = learned.start_ups_ms.get(pool.name)
            if start_ups and not (state.leading and pool.start_ups_ms):
                pool.start_ups_ms = [min(one, pool.knobs.start_deadline_ms) for one in start_ups]
            if not (state.leading and pool.victim_rule):
                pool.victim_rule = learned.victims.get(pool.name)
        if learned.data and not _import(planners[name], learned):
            state.count("learned_ignored")


def save(planners: Mapping[str, Planner], scope: str, state: AgentState, now: int) -> list[SaveLearned]:
    """Compare the learned state of the next model with the store, and write it if it differs; for leaders only."""
    if not state.registry_read or now < state.learning_at_ms:
        return []
    state.learning_at_ms = now + COMPARE_INTERVAL_MS
    names = sorted(state.fleet.models)
    if not names:  # a reload has removed the last model of this shard
        return []
    name = state.learning_of = next((name for name in names if name > state.learning_of), names[0])
    saved_at_ms = state.fleet.models[name].learned_saved_at_ms
    if saved_at_ms is not None and now < saved_at_ms + SAVE_INTERVAL_MS:
        return []
    stored = state.stored.get(name, LearnedState())
    learned = _learned(state, planners[name], name, stored)
    if learned == stored:
        return []
    state.fleet.models[name].learned_saved_at_ms = now
    return [SaveLearned(name, learned, scope, state.leadership.lease_id)]


def _learned(state: AgentState, planner: Planner, name: str, stored: LearnedState) -> LearnedState:
    """Return the learned state of a model, with the stored values for what this agent has not learned."""
    pools = state.fleet.models[name].pools.values()
    start_ups = {pool.name: list(pool.start_ups_ms) for pool in pools}
    start_ups = {pool: times for pool, times in sorted(start_ups.items()) if times}
    rules = {pool.name: pool.victim_rule or stored.victims.get(pool.name, "named") for pool in pools}
    rules = {pool: rule for pool, rule in sorted(rules.items()) if rule != "named"}
    data = _export(planner)
    if data is not None and len(data) > DATA_BYTES_MAX:
        state.count("learned_too_large")
        data = None
    author, data = (stored.planner, stored.data) if data is None else (planner.name, data)
    return LearnedState(start_ups_ms=start_ups or stored.start_ups_ms, victims=rules, planner=author, data=data)


def _import(planner: Planner, learned: LearnedState) -> bool:
    """Import stored state unless the planner has its own; return True if the planner has learned state afterwards."""
    if _export(planner) is not None:
        return True
    if learned.planner == planner.name:
        try:
            planner.import_learned(learned.data)
        except Exception:  # noqa: BLE001 - any stored data would otherwise stop all models, and again after a restart
            return False
    return _export(planner) is not None


def _export(planner: Planner) -> bytes | None:
    """Return the learned state of a planner; None if there is none or the planner fails, which its next run reports."""
    try:
        return planner.export_learned()
    except Exception:  # noqa: BLE001 - a fault of one planner must not stop the other models
        return None
