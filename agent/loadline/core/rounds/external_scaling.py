"""Rounds over a fleet that another program scales: totals are refreshed, and nothing is decided."""

from collections.abc import Sequence
from typing import Final

from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.effects import Effect

SWEEP_MS: Final = 1_000
"""Interval of checks for silent workers."""


class ExternalScaling:
    """Substitute for a scaling pipeline that refreshes the totals of all models."""

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def plan(self, names: Sequence[str], now: int) -> list[Effect]:
        """Refresh the totals of models at ``now`` (ms); return no effects."""
        fleet = self._state.fleet
        for name in names:
            model = fleet.models[name]
            if model.plan_at_ms <= now:
                model.expire_silent(now, fleet.knobs)
                fleet.remove_silent_drains(model, now)
                fleet.admit_waiting(model, now)
                model.plan_at_ms = now + SWEEP_MS
            model.refresh_totals(now, fleet.knobs)
        return []

    def wake_waiting(self, now: int) -> None:
        """Do nothing: no model waits for GPUs."""
