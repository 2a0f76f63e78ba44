"""Data of the live page: pure functions from a status to what the page shows."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.vocabulary.reasons import Explanation, Reason
from loadline.core.vocabulary.status import AgentStatus, ModelStatus, PoolStatus, WorkerStatus, mean_kv_usage

SILENT_MS: Final = 10_000
"""Age of a worker's last report above which the page shows the worker as silent."""


class FleetRow(Struct, frozen=True):
    """One model in the list of all models."""

    model: str
    namespace: str
    planner: str
    state: str
    """``paused``, ``advisory``, ``standby`` (another agent leads the model), ``attention`` (a condition is false, an
    input is missing or an objective is missed), ``scaling`` (workers are started or drained) or ``steady``."""
    desired: int | None
    """None: another agent decides it."""
    ready: int
    starting: int
    draining: int
    kv_usage_ratio: float | None
    """Mean over the workers that report; None without any."""
    waiting_requests: int | None
    """None: no ready worker reports."""
    requests_per_s: float | None
    ttft_ms: float | None
    itl_ms: float | None
    ttft_attainment: float | None
    itl_attainment: float | None
    ttft_missed: bool
    """True if the TTFT of the last minute misses its objective."""
    itl_missed: bool
    """True if the ITL of the last minute misses its objective."""
    decided_at_ms: int | None
    """Time of the last decision that this leader knows; None: there is none."""


class FleetPage(Struct, frozen=True):
    """All models of an agent, a row each."""

    agent: AgentStatus
    """Status without its models."""
    rows: tuple[FleetRow, ...]


class WorkerCell(Struct, frozen=True, array_like=True):
    """One worker in the grid of its pool; an array, since there may be thousands."""

    worker: str
    state: str
    """``ready``, ``starting``, ``draining``, ``unschedulable`` or ``silent``."""
    kv_percent: int | None
    waiting_requests: int
    running_requests: int


class Wait(Struct, frozen=True):
    """A reason why nothing changes."""

    code: str
    sentence: str
    until_ms: int | None
    """Time at which this reason ends by itself, in Unix ms; None: it depends on the load or on other programs."""


class ModelPage(Struct, frozen=True):
    """One model in detail."""

    at_ms: int
    status: ModelStatus
    """Status whose pools list no workers."""
    workers: dict[str, list[WorkerCell]]
    """Workers by pool."""
    waits: tuple[Wait, ...]
    point: dict[str, float | None]
    """Newest values of the charts, by series."""
    interval_ms: int
    """Time between two points of the history; a client that has another one loads the history again."""
    decisions_revision: int
    """Number that rises with each change of the model's list of decisions."""


class PlannerPart(Struct, frozen=True):
    """Recommendation of one planner in a decision."""

    planner: str
    inputs: dict[str, float]
    targets: dict[str, int]
    reasons: tuple[str, ...]


class DecisionPage(Struct, frozen=True):
    """A decision or an advice with its explanation, in the sentences of ``loadline explain``."""

    decision_id: str
    at_ms: int
    outcome: str
    state: str
    """State of the decision, such as ``done``; empty if unknown."""
    detail: str
    """Last statement of its scaler."""
    current: dict[str, int]
    targets: dict[str, int]
    recommendations: tuple[PlannerPart, ...]
    limits: tuple[str, ...]
    superseded_by: str


def fleet_row(status: ModelStatus) -> FleetRow:
    """Return the row of a model."""
    pools, traffic, leads = status.pools, status.traffic, bool(status.epoch)
    return FleetRow(
        model=status.model,
        namespace=status.namespace,
        planner=status.planner,
        state=_state(status),
        desired=sum(pool.desired for pool in pools) if leads else None,
        ready=sum(pool.ready for pool in pools),
        starting=sum(pool.starting + (pool.pending if leads else 0) for pool in pools),
        draining=sum(pool.draining for pool in pools),
        kv_usage_ratio=_rounded(mean_kv_usage(pools)),
        waiting_requests=None if _is_silent(pools) else sum(pool.waiting_requests for pool in pools),
        requests_per_s=_rounded(traffic.requests_per_s),
        ttft_ms=_rounded(traffic.ttft_ms),
        itl_ms=_rounded(traffic.itl_ms),
        ttft_attainment=_rounded(traffic.ttft_attainment, 4),
        itl_attainment=_rounded(traffic.itl_attainment, 4),
        ttft_missed=_is_ttft_missed(status),
        itl_missed=_is_itl_missed(status),
        decided_at_ms=status.decision.issued_at_ms if leads and status.decision is not None else None,
    )


def fleet_page(agent: AgentStatus, rows: Sequence[FleetRow]) -> FleetPage:
    """Return the list of all models of an agent."""
    return FleetPage(replace(agent, models=()), tuple(rows))


def model_page(
    status: ModelStatus,
    workers: dict[str, list[WorkerCell]],
    hold: Explanation | None,
    *,
    at_ms: int,
    interval_ms: int,
    decisions_revision: int,
) -> ModelPage:
    """Return a model in detail, with the hold that its status is about."""
    pools = tuple(replace(pool, workers=()) for pool in status.pools)
    return ModelPage(
        at_ms=at_ms,
        status=replace(status, pools=pools, hold=(), hold_reasons=()),
        workers=workers,
        waits=tuple(waits(hold, leads=bool(status.epoch))),
        point=point(status),
        interval_ms=interval_ms,
        decisions_revision=decisions_revision,
    )


def worker_cell(worker: WorkerStatus) -> WorkerCell:
    """Return the cell of a worker."""
    silent = worker.age_ms is not None and worker.age_ms > SILENT_MS
    return WorkerCell(
        worker.worker,
        "silent" if silent and worker.state == "ready" else worker.state,
        round(100 * worker.kv_usage_ratio) if worker.kv_reported else None,
        worker.waiting_requests,
        worker.running_requests,
    )


def waits(hold: Explanation | None, *, leads: bool = True) -> Iterator[Wait]:
    """Yield the reasons of a hold, each once, with the time at which it ends by itself.

    Args:
        hold: The hold; None: there is none.
        leads: False: the planner's reasons are left out, since another agent decides.
    """
    if hold is None:
        return
    reasons = [*hold.limits]
    if leads:
        reasons += [reason for one in hold.recommendations for reason in one.reasons]
    for reason in dict.fromkeys((one.code, one.pool, one.sentence(), _until_ms(one, hold.at_ms)) for one in reasons):
        code, _pool, sentence, until_ms = reason
        yield Wait(code, sentence, until_ms)


def point(status: ModelStatus) -> dict[str, float | None]:
    """Return the values of a model's charts; None: unknown."""
    traffic, forecast = status.traffic, status.estimates.forecast
    found: dict[str, float | None] = {
        "rate": _rounded(traffic.requests_per_s),
        "queued": traffic.queued,
        "ttft": _rounded(traffic.ttft_ms),
        "itl": _rounded(traffic.itl_ms),
        "ttft_met": _rounded(traffic.ttft_attainment, 4),
        "itl_met": _rounded(traffic.itl_attainment, 4),
        "served": _served_per_s(status),
        "forecast": None if forecast is None else _rounded(forecast.requests_per_s),
        "forecast_lead_ms": None if forecast is None else forecast.lead_ms,
        "forecast_error": None,
    }
    if forecast is not None and forecast.observed_requests > 0:
        found["forecast_error"] = round(min(1.0, forecast.error_requests / forecast.observed_requests), 4)
    for pool in status.pools:
        found[f"desired:{pool.pool}"] = pool.desired if status.epoch else None
        found[f"ready:{pool.pool}"] = pool.ready
        found[f"kv:{pool.pool}"] = _rounded(pool.kv_usage, 3) if pool.ready else None
    return found


def decision_page(found: Explanation, state: str, detail: str) -> DecisionPage:
    """Return a decision or an advice with its explanation."""
    parts = (
        PlannerPart(
            one.planner, dict(sorted(one.inputs.items())), one.targets, tuple(r.sentence() for r in one.reasons)
        )
        for one in found.recommendations
    )
    return DecisionPage(
        decision_id=found.decision_id,
        at_ms=found.at_ms,
        outcome=found.outcome,
        state=state,
        detail=detail,
        current=found.current,
        targets=found.targets,
        recommendations=tuple(parts),
        limits=tuple(reason.sentence() for reason in found.limits),
        superseded_by=found.superseded_by,
    )


def _until_ms(reason: Reason, at_ms: int) -> int | None:
    left_ms = reason.numbers.get("left_ms")
    return None if left_ms is None else at_ms + int(left_ms)


def _state(status: ModelStatus) -> str:
    if status.paused:
        return "paused"
    if status.no_operation:
        return "advisory"
    if not status.epoch:
        return "standby"
    troubled = bool(status.missing) or not all(condition.status for condition in status.conditions)
    if troubled or _is_ttft_missed(status) or _is_itl_missed(status):
        return "attention"
    changing = any(pool.ready != pool.desired or pool.starting or pool.draining for pool in status.pools)
    return "scaling" if changing else "steady"


def _is_ttft_missed(status: ModelStatus) -> bool:
    traffic, goals = status.traffic, status.objectives
    return _is_missed(traffic.ttft_ms, goals.get("ttft_ms"), traffic.ttft_attainment, goals.get("attainment"))


def _is_itl_missed(status: ModelStatus) -> bool:
    traffic, goals = status.traffic, status.objectives
    return _is_missed(traffic.itl_ms, goals.get("itl_ms"), traffic.itl_attainment, goals.get("attainment"))


def _is_missed(mean_ms: float | None, goal_ms: float | None, attained: float | None, wanted: float | None) -> bool:
    """Return True if too few requests are within an objective, or their mean is not, as the planner sizes for."""
    if not goal_ms:
        return False
    if wanted and attained is not None:
        return attained < wanted
    return mean_ms is not None and mean_ms > goal_ms


def _is_silent(pools: Sequence[PoolStatus]) -> bool:
    """Return True if workers are ready and none of them reports: their load is unknown, not 0."""
    return any(pool.ready for pool in pools) and not any(pool.fresh for pool in pools)


def _served_per_s(status: ModelStatus) -> float | None:
    """Return the rate that the ready workers serve within the objectives: that of the role that serves least."""
    by_role: dict[str, float] = {}
    for pool in status.pools:
        estimate = status.estimates.pools.get(pool.pool)
        if estimate is not None and estimate.serves_per_s is not None:
            by_role[pool.role] = by_role.get(pool.role, 0.0) + estimate.serves_per_s * pool.ready
    return round(min(by_role.values()), 3) if by_role else None


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
