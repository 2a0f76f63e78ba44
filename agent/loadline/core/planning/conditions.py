"""Conditions of a model, in the style of Kubernetes: a status, a reason and a message.

``MetricsAvailable``: enough workers report, and so do frontends if the planner cannot plan without them.
``OptimizationReady``: the targets follow the recommendation of the planner, within the guardrails.
``DemandWithinMaximum``: the planner recommends no pool more than its ``replicas_max``.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.planner import TrafficNeed
from loadline.core.vocabulary.conditions import Condition, ConditionName, ConditionReason
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation

_BY_CODE: Final[tuple[tuple[ConditionReason, bool, dict[ReasonCode, str]], ...]] = (
    (
        "SkippedProcessing",
        False,
        {
            ReasonCode.NOT_LEADER: "query the leader",
            ReasonCode.NOT_SETTLED: "if this persists, check the connection to etcd",
            ReasonCode.STOPPING: "another agent takes over",
            ReasonCode.HANDING_OVER: "another agent takes over",
            ReasonCode.PAUSED: "resume it with `loadline resume MODEL`",
            ReasonCode.BUS_DOWN: "check the connection to NATS",
        },
    ),
    ("OptimizationFailed", False, {ReasonCode.PLANNER_FAILED: "scale manually or select another planner meanwhile"}),
    (
        "InvalidConfiguration",
        False,
        {
            ReasonCode.PROFILE_UNUSABLE: "",
            ReasonCode.SLA_INFEASIBLE: "",
            ReasonCode.KV_CACHE_TOO_SMALL: "correct max_kv_tokens, or use workers with a larger cache",
        },
    ),
    (
        "MetricsUnavailable",
        False,
        {
            ReasonCode.NO_WORKERS: "find out why no worker starts",
            ReasonCode.NO_DATA: "check that workers reach NATS, and the rejected samples",
            ReasonCode.TRAFFIC_UNKNOWN: "check that frontends report",
            ReasonCode.ENGINE_LEARNING: "",
            ReasonCode.LOAD_LEARNING: "wait until workers have reported more latencies",
            ReasonCode.NO_RECOMMENDATION: "see the reasons of both",
        },
    ),
    (
        "ResourceConstrained",
        False,
        {
            ReasonCode.CAPACITY_LIMITED: "add GPUs and raise allocation.capacity, or reduce other models",
            ReasonCode.QUOTA_LIMITED: "raise the gpu_quota of the namespace, or reduce its other models",
            ReasonCode.GIVES_WAY: "add GPUs, or change a priority",
            ReasonCode.GPU_BUDGET_MAX: "raise gpu_budget_max, or wait for drains",
            ReasonCode.GPU_BUDGET_HOLD: "widen the band between gpu_budget_min and gpu_budget_max",
            ReasonCode.GPU_BUDGET_RECONCILE: "raise gpu_budget_max",
            ReasonCode.FLEET_GPU_BUDGET_MAX: "raise fleet.gpu_budget_max, or wait for other models to scale down",
        },
    ),
    (
        "ResourceConstrained",
        False,
        {ReasonCode.GPUS_OCCUPIED: "wait for draining workers; if this persists, add GPUs or change a priority"},
    ),
    ("SkippedProcessing", True, {ReasonCode.ADVISE_ONLY: "set no_operation = false to execute decisions"}),
    (
        "CapacitySafetyOverride",
        True,
        {
            ReasonCode.NO_DATA_NO_SHRINK: "find out why workers are silent",
            ReasonCode.METRIC_MISSING: "find out why workers do not report the other metrics",
            ReasonCode.SATURATION_VETO: "no action needed; if frequent, recalibrate the queueing model",
            ReasonCode.SHRINK_UNSAFE: "no action needed",
            ReasonCode.REPLACEMENT_NOT_READY: "if this persists, find out why the other workers do not start",
        },
    ),
    ("CapacityOnlyMode", True, {ReasonCode.SATURATION_ALONE: "see the reasons of the queueing model"}),
)
"""Effect of reason codes on ``OptimizationReady``, most severe first, with a remedy unless the sentence names one."""


class _CodeEffect(NamedTuple):
    """Effect of a reason code on ``OptimizationReady``."""

    rank: int
    """Position in order of severity; 0 is the most severe."""
    reason: ConditionReason
    status: bool
    remedy: str


_EFFECTS: Final = {
    code: _CodeEffect(rank, reason, status, remedy)
    for rank, (reason, status, remedies) in enumerate(_BY_CODE)
    for code, remedy in remedies.items()
}
_ONE_PLANNER_DECIDES: Final = frozenset({ReasonCode.SATURATION_ALONE, ReasonCode.QUEUEING_ALONE})
"""Codes by which one of two planners decides; missing inputs of the other are then no failure."""
_MISSING_INPUTS: Final = frozenset({"InvalidConfiguration", "MetricsUnavailable"})


def conditions(
    model: Model,
    recommendation: Recommendation,
    limits: Sequence[Reason],
    before: Sequence[Condition],
    now: int,
    *,
    fleet: FleetKnobs,
    traffic: TrafficNeed,
    scales_to_zero: bool,
) -> tuple[Condition, ...]:
    """Return the conditions of a model.

    Args:
        model: State of the model.
        recommendation: Newest recommendation of its planner.
        limits: Limits that were applied to the recommendation.
        before: Previous conditions; an unchanged status keeps its ``since_ms``.
        now: Unix time in ms.
        fleet: Staleness and quorum of workers.
        traffic: Need of the planner for traffic reports.
        scales_to_zero: True if an idle model is scaled to zero.
    """
    previous = {condition.name: (condition.status, condition.since_ms) for condition in before}

    def condition(name: ConditionName, found: tuple[bool, ConditionReason, str]) -> Condition:
        status, reason, message = found
        previous_status, since_ms = previous.get(name, (not status, now))
        return Condition(name, status, reason, message, since_ms if previous_status is status else now)

    return (
        condition("MetricsAvailable", _metrics(model, now, fleet, traffic, scales_to_zero=scales_to_zero)),
        condition("OptimizationReady", _optimization(model, recommendation, limits, now)),
        condition("DemandWithinMaximum", _maximum(model, recommendation, now)),
    )


def empty_pools(model: Model, now: int, *, scales_to_zero: bool) -> list[Pool]:
    """Return the pools that have no ready worker and should have one, also before the first decision."""
    if all(pool.ready for pool in model.pools.values()):
        return []  # as nearly always
    targets = {pool.name: _intended(pool, now) for pool in model.pools.values()}
    served_roles = {pool.knobs.role for pool in model.pools.values() if targets[pool.name]}
    at_zero = scales_to_zero and not served_roles
    undecided = (pool for pool in model.pools.values() if pool.decided is None and not at_zero)
    unserved = {pool.name for pool in undecided if pool.knobs.role not in served_roles}
    return [pool for pool in model.pools.values() if not pool.ready and (targets[pool.name] or pool.name in unserved)]


def lacks_traffic(model: Model, need: TrafficNeed, now: int) -> bool:
    """Return True if a planner waits for reports of frontends; where they are optional, only once one has reported."""
    expected = need == "required" or (need == "optional" and bool(model.traffic.frontends))
    return expected and not model.traffic.is_reporting(now)


def _metrics(
    model: Model, now: int, fleet: FleetKnobs, traffic: TrafficNeed, *, scales_to_zero: bool
) -> tuple[bool, ConditionReason, str]:
    """Return the status, reason and message of ``MetricsAvailable``."""
    for pool in empty_pools(model, now, scales_to_zero=scales_to_zero):
        return False, "MetricsMissing", f"no worker of pool {pool.name} is ready: find out why none starts"
    for pool in model.pools.values():
        silent = _silent_workers(pool, fleet)
        if silent is not None:
            return False, *silent
    found = "enough ready workers of every pool report"
    if traffic == "optional" and not model.traffic.frontends:
        return True, "MetricsFound", f"{found}; no frontend has reported traffic, so objectives cannot be judged"
    if lacks_traffic(model, traffic, now):
        return False, "MetricsMissing", "no frontend reports traffic: check that frontends run and reach NATS"
    return True, "MetricsFound", found


def _silent_workers(pool: Pool, fleet: FleetKnobs) -> tuple[ConditionReason, str] | None:
    """Return the reason and message for a pool of which too few ready workers report; None for other pools."""
    if not pool.ready or (pool.fresh and pool.has_quorum(fleet.quorum_ratio)):
        return None
    has_reported = any(worker.seen_at_ms >= 0 for worker in pool.workers.values() if worker.counted_as == "ready")
    remedy = "check that they run and reach NATS, and the rejected samples"
    counts = f"{pool.fresh} of {pool.ready} ready workers of pool {pool.name} report"
    if has_reported:
        return "MetricsStale", f"{counts}; the others have been silent for at least {fleet.stale_after_ms} ms: {remedy}"
    return "MetricsMissing", f"{counts}, and none has ever reported: {remedy}"


def _optimization(
    model: Model, recommendation: Recommendation, limits: Sequence[Reason], now: int
) -> tuple[bool, ConditionReason, str]:
    """Return the status, reason and message of ``OptimizationReady``: the most severe reason decides."""
    worst: _CodeEffect | None = None
    decisive: Reason | None = recommendation.reasons[0] if recommendation.reasons else None
    for reason in (*limits, *recommendation.reasons):
        effect = _EFFECTS.get(reason.code)
        if effect is None or (worst is not None and worst.rank <= effect.rank):
            continue
        if effect.reason == "ResourceConstrained" and not _lowers_count(reason):
            continue
        is_missing = effect.reason in _MISSING_INPUTS and reason.code is not ReasonCode.NO_RECOMMENDATION
        if is_missing and any(one.code in _ONE_PLANNER_DECIDES for one in recommendation.reasons):
            continue
        if _is_empty_as_intended(model, reason, now):
            continue
        worst, decisive = effect, reason
    sentence = decisive.sentence() if decisive is not None else ""
    if worst is None:
        return True, "OptimizationSucceeded", sentence
    return worst.status, worst.reason, f"{sentence}: {worst.remedy}" if worst.remedy else sentence


def _maximum(model: Model, recommendation: Recommendation, now: int) -> tuple[bool, ConditionReason, str]:
    """Return the status, reason and message of ``DemandWithinMaximum``; a pool without a target keeps its current one.

    It follows the recommendation and no limit, since others may override that of ``replicas_max``.
    """
    above = [
        f"pool {name} needs {needed} workers, replicas_max is {pool.knobs.replicas_max}"
        for name, pool in model.pools.items()
        if (needed := recommendation.targets.get(name, pool.effective_target(now))) > pool.knobs.replicas_max
    ]
    if above:
        return False, "AboveMaximum", f"{'; '.join(above)}: raise it if latency suffers"
    return True, "WithinMaximum", "no pool needs more workers than its replicas_max"


def _lowers_count(reason: Reason) -> bool:
    """Return True if a limit lowered the count; some limits raise it."""
    return reason.numbers["allowed"] < reason.numbers["wanted"]


def _is_empty_as_intended(model: Model, reason: Reason, now: int) -> bool:
    """Return True if a pool has no workers because its target is 0, and not because none has registered yet."""
    pool = model.pools.get(reason.pool)
    if reason.code is not ReasonCode.NO_WORKERS or pool is None:
        return False
    return not _intended(pool, now)


def _intended(pool: Pool, now: int) -> int:
    """Return the target of a pool; before the first decision at least its minimum, though no worker exists."""
    target = pool.effective_target(now)
    return max(target, pool.minimum) if pool.decided is None else target
