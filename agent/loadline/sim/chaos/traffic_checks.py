"""Checks of the traffic that an agent counts, in the turns in which frontends have reported."""

from loadline.core.fleet.traffic import FrontendTraffic
from loadline.sim.chaos.agent_history import AgentHistory
from loadline.sim.chaos.demand_history import FrontendHistory
from loadline.sim.chaos.invariants import ReportViolation


def check_traffic(history: AgentHistory, report: ReportViolation) -> None:
    """Check the models and frontends of this turn's reports."""
    models = history.agent.controller.state.fleet.models
    for model, frontend in history.demand.reporting:
        known = models.get(model)
        if known is None:
            continue
        traffic = history.demand.traffic[model]
        counted = known.traffic.totals.arrivals
        if counted > traffic.arrivals:
            report("F1-once", f"{model}: {counted} arrivals counted, {traffic.arrivals} reported")
        accepted = known.traffic.frontends.get(frontend)
        if accepted is not None:
            _check_newest(frontend, accepted, traffic.frontends[frontend], report)


def _check_newest(name: str, accepted: FrontendTraffic, before: FrontendHistory, report: ReportViolation) -> None:
    """Check that no report has replaced a newer one that is not overdue."""
    number = accepted.incarnation, accepted.sequence
    if number < before.accepted and accepted.seen_at_ms <= before.accepted_until_ms:
        report("F2-newest", f"{name} from {before.accepted} to {number}")
    before.accepted, before.accepted_until_ms = number, accepted.fresh_until_ms
