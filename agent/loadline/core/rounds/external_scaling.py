"""A round over a fleet that something else scales: nothing is decided, and workers that drain are followed."""

from collections.abc import Sequence
from typing import Final

from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.effects import Effect

SWEEP_MS: Final = 1_000
"""Interval at which silent workers are found."""


class ExternalScaling:
    """Keeps the sums of all models up to date, in place of a scaling pipeline."""

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def plan(self, names: Sequence[str], now: int) -> list[Effect]:
        """Bring models up to date at ``now`` (ms); there is nothing to decide."""
        fleet = self._state.fleet
        for name in names:
            model = fleet.models[name]
            if model.plan_at_ms <= now:
                model.expire_silent(now, fleet.knobs)
                fleet.remove_silent_drains(model, now)
                model.plan_at_ms = now + SWEEP_MS
            model.refresh_totals(now, fleet.knobs)
        return []

    def wake_waiting(self, now: int) -> None:
        """Do nothing: no model waits for GPUs."""
