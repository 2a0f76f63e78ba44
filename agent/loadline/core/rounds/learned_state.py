"""Learned state in the store. Its loss costs time, never a decision: nothing waits for it."""

from collections.abc import Iterable, Mapping
from typing import Final

from loadline.core.planning.planners import Planner
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.effects import SaveLearned
from loadline.core.vocabulary.learned import DATA_BYTES_MAX, LearnedState

LOOK_INTERVAL_MS: Final = 1_000
"""One model is looked at in each: of 100 models no turn takes more than one."""
SAVE_INTERVAL_MS: Final = 60_000
"""Minimum time between two writes for one model; a failed or unknown write is repeated after it."""


def ingest(state: AgentState, planners: Mapping[str, Planner], models: Iterable[str]) -> None:
    """Believe what the store has just told of some models, where nothing better is known.

    A leader has seen the start-ups of its own term, and a planner what it has learned itself.
    """
    for name in models:
        learned = state.stored[name]
        for pool in state.fleet.models[name].pools.values():
            start_ups = learned.start_ups_ms.get(pool.name)
            if start_ups and not (state.leading and pool.start_ups_ms):
                pool.start_ups_ms = [min(one, pool.knobs.start_deadline_ms) for one in start_ups]
        if learned.data and not _teach(planners[name], learned):
            state.count("learned_ignored")


def save(planners: Mapping[str, Planner], scope: str, state: AgentState, now: int) -> list[SaveLearned]:
    """Have what the next model has taught written, where that is not what the store holds. Only a leader asks."""
    if not state.registry_read or now < state.learning_at_ms:
        return []
    state.learning_at_ms = now + LOOK_INTERVAL_MS
    names = sorted(state.fleet.models)
    name = state.learning_of = next((name for name in names if name > state.learning_of), names[0])
    saved_at_ms = state.fleet.models[name].learned_saved_at_ms
    if saved_at_ms is not None and now < saved_at_ms + SAVE_INTERVAL_MS:
        return []
    stored = state.stored.get(name, LearnedState())
    learned = _learned(state, planners[name], name, stored)
    if learned == stored:
        return []
    state.fleet.models[name].learned_saved_at_ms = now
    return [SaveLearned(name, learned, scope, state.leadership.epoch)]


def _learned(state: AgentState, planner: Planner, name: str, stored: LearnedState) -> LearnedState:
    """All that a model has taught. What was not learned anew stays as it is stored."""
    start_ups = {pool.name: list(pool.start_ups_ms) for pool in state.fleet.models[name].pools.values()}
    start_ups = {pool: times for pool, times in sorted(start_ups.items()) if times}
    data = _said(planner)
    if data is not None and len(data) > DATA_BYTES_MAX:
        state.count("learned_too_large")
        data = None
    kept = (stored.planner, stored.data) if data is None else (planner.name, data)
    return LearnedState(start_ups_ms=start_ups or stored.start_ups_ms, planner=kept[0], data=kept[1])


def _teach(planner: Planner, learned: LearnedState) -> bool:
    """Return True if the planner has learned state, after importing what was stored."""
    if _said(planner) is not None:
        return True
    if learned.planner == planner.name:
        try:
            planner.import_learned(learned.data)
        except Exception:  # noqa: BLE001 - whatever is in the store, all models would stop for it, and again after a restart
            return False
    return _said(planner) is not None


def _said(planner: Planner) -> bytes | None:
    """Return what a planner has learned; nothing if it fails, which is reported when it runs."""
    try:
        return planner.export_learned()
    except Exception:  # noqa: BLE001 - no other model is to stop for it
        return None
