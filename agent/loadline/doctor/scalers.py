"""Checks of scalers: that the newest decision of each model was accepted and carried out, as the leader knows it."""

from loadline.core.vocabulary.status import ModelStatus
from loadline.doctor.bus_facts import BusFacts
from loadline.doctor.deployment import Deployment
from loadline.doctor.findings import Finding, failed, first_of, ok, skipped, warning

_UNANSWERED_MS = 5_000
"""A scaler that runs accepts an announcement at once, and one is sent every second."""


def scaler_finding(bus: BusFacts, deployment: Deployment) -> Finding:
    """Check that a scaler answers the decisions of every model."""
    check = "scalers"
    if deployment.only:
        return ok(check, "not needed: these agents only migrate requests")
    leading = [answer.status for answer in bus.agents if answer.status.leading]  # several share the models
    if not leading:
        return skipped(check, "no leader told the state of its decisions", "Remedy the findings on agents first.")
    unanswered = [one.model for status in leading for one in status.models if _unanswered(one, status.at_ms)]
    return _judge([model for status in leading for model in status.models if not model.no_operation], unanswered)


def _judge(models: list[ModelStatus], unanswered: list[str]) -> Finding:
    check = "scalers"
    refused = [_told(model) for model in models if _state(model) in {"refused", "expired"}]
    reasons = [_told(model) for model in models if _state(model) in {"accepted", "applied"} and _detail(model)]
    accepted = [model.model for model in models if _state(model) in {"accepted", "applied"}]
    if unanswered:
        remedy = "Start its scaler: `loadline scaler NAME --config FILE`; its login needs the role scaler."
        return failed(check, f"no scaler accepts the decisions of {first_of(unanswered)}", remedy)
    if refused:
        remedy = "`loadline explain` and the scaler's log tell why."
        return warning(check, f"the last decision was not carried out: {first_of(refused)}", remedy)
    if reasons:
        remedy = "Remedy what the scaler states; `loadline scaler NAME validate --config FILE` may tell more."
        return warning(check, f"workers are missing: {first_of(reasons)}", remedy)
    if not accepted:
        return skipped(check, "no decision yet that a scaler had time to accept", "Run this again after one.")
    return ok(check, f"the last decisions of {first_of(accepted)} were accepted")


def _state(model: ModelStatus) -> str:
    return "" if model.decision is None else model.decision.state


def _detail(model: ModelStatus) -> str:
    return "" if model.decision is None else model.decision.detail


def _told(model: ModelStatus) -> str:
    detail = _detail(model)
    return f"{model.model} ({_state(model)}{': ' if detail else ''}{detail})"


def _unanswered(model: ModelStatus, now_ms: int) -> bool:
    decision = model.decision
    if decision is None or decision.state != "committed" or model.no_operation:
        return False
    return now_ms - decision.issued_at_ms > _UNANSWERED_MS
