"""Holds of models."""

from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.reasons import Explanation


def hold_of(state: AgentState, model: str) -> Explanation:
    """Return the last hold or advice of a model."""
    hold = state.fleet.models[model].hold
    assert hold is not None
    return hold
