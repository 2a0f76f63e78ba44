"""Checks of the targets of ``night``: they follow the schedule and the first request, and shrink on knowledge only."""

from typing import Final

from loadline.core.vocabulary.decisions import Decision
from loadline.sim.chaos.agent_history import AgentHistory
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.chaos.liveness import OBSTACLES
from loadline.sim.chaos.night_settings import IDLE_MS, NIGHT, NIGHT_POOL, scheduled_replicas

_SLACK_MS: Final = 3_000
"""Time until a planner that runs once a second has noticed a change, and its turn was late."""


def check_commit(history: AgentHistory, decision: Decision, now: int, report: ReportViolation) -> None:
    """Check a decision of the model when its commit starts."""
    target = next(one for one in decision.targets if one.pool == NIGHT_POOL)
    minimum, traffic = scheduled_replicas(now), history.demand.traffic.get(NIGHT)
    if target.replicas < minimum:
        report("S1-minimum", f"{target.replicas} of the scheduled {minimum}")
    if traffic is None or target.replicas >= target.previous:
        return
    silent_ms = traffic.silent_ms(now)
    if silent_ms > _SLACK_MS:
        report("F3-silent", f"from {target.previous} to {target.replicas}, a frontend is overdue by {silent_ms} ms")
    if not target.replicas and now - traffic.busy_ms < IDLE_MS:
        report("Z1-idle", f"{now - traffic.busy_ms} ms after the last request")


def check_turn(history: AgentHistory, now: int, report: ReportViolation) -> None:
    """Check that a leader without an obstacle gives the pool its minimum, and a worker for requests."""
    state = history.agent.controller.state
    model = state.fleet.models.get(NIGHT)
    if model is None or not (state.leading and history.acting and history.registry_read):
        history.demand.below_since_ms.clear()
        return
    obstacle = model.hold is None or (model.hold.limits and model.hold.limits[0].code in OBSTACLES)
    target = model.pools[NIGHT_POOL].effective_target(now)
    traffic = history.demand.traffic.get(NIGHT)
    requested = traffic is not None and 0 <= now - traffic.busy_ms < _SLACK_MS
    _check_persistence(history, "S2-begins", now, report, below=not obstacle and target < scheduled_replicas(now))
    _check_persistence(history, "Z2-wake", now, report, below=not obstacle and not target and requested)


def _check_persistence(history: AgentHistory, name: str, now: int, report: ReportViolation, *, below: bool) -> None:
    """Report a target that stays too low."""
    if not below:
        history.demand.below_since_ms.pop(name, None)
        return
    since_ms = history.demand.below_since_ms.setdefault(name, now)
    if now - since_ms > _SLACK_MS:
        report(name, f"for {now - since_ms} ms")
