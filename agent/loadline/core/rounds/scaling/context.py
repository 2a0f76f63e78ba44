"""Context that the steps of a scaling round share."""

from typing import Final

from msgspec import Struct

from loadline.core.planning.allocation.gpu_ledger import GpuLedger, gpu_ledger_of
from loadline.core.planning.planners import Planner
from loadline.core.planning.schedules import Schedules
from loadline.core.rounds.faults import fault_text
from loadline.core.state.agent_state import AgentState, limited_supplies, replacing_planner
from loadline.core.state.model_state import ModelState
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.reasons import Explanation, Reason, ReasonCode, Recommendation

RETRY_MS: Final = 1_000
"""Time after which a planner that failed runs again, unless its model changes before."""


class Outcome(Struct, frozen=True):
    """Result of a round for one model."""

    explanation: Explanation
    effects: tuple[Effect, ...] = ()


class ScalingContext:
    """State, planners and settings of scaling rounds, derived from the state of the agent and its settings."""

    def __init__(self, settings: Settings, state: AgentState, planners: dict[str, Planner]) -> None:
        self.state = state
        self.planners = planners
        self.settings = settings
        self.scope = settings.scope
        self.models: dict[str, ModelKnobs] = {model.name: model for model in settings.models}
        self.allocation = settings.allocation
        self.supplies = limited_supplies(settings, state.fleet)
        self.schedules = {model.name: Schedules(model.pools, settings.zones) for model in settings.models}

    def gpu_ledger(self, now: int) -> GpuLedger | None:
        """Return the GPUs of all models at ``now`` (ms); None if no budget or supply limits them."""
        return gpu_ledger_of(self.state.fleet, self.state.ledger.pending(), self.supplies, now)

    def replace_planner(self, name: str) -> None:
        """Let a model begin with a new planner."""
        self.planners[name] = replacing_planner(self.state, self.settings, self.models[name])

    def fail(self, model: ModelState, fault: Exception, now: int) -> tuple[Recommendation, list[Effect]]:
        """Return a recommendation that reports an exception, and an alarm if the last run of the planner succeeded."""
        text = fault_text(fault)
        model.plan_at_ms = now + RETRY_MS
        self.state.count("planner_failures")
        alarms: list[Effect] = [] if model.failing else [RaiseAlarm("planner_failed", model.name, text)]
        model.failing = True
        reasons = (Reason(ReasonCode.PLANNER_FAILED, detail=text),)
        return Recommendation(self.planners[model.name].name, {}, reasons, {}), alarms
