"""Whether a model can be planned well: two conditions, each a yes or a no with a reason, as Kubernetes has them.

``MetricsAvailable``: enough is heard of its workers, and of its traffic where its planner goes by that.
``OptimizationReady``: its counts are those that its planner wants, as far as the rails let it.
"""

from collections.abc import Sequence
from typing import Final

from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import Pool
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.status import Condition, ConditionName, ConditionReason

_BY_CODE: Final[tuple[tuple[ConditionReason, bool, dict[ReasonCode, str]], ...]] = (
    (
        "SkippedProcessing",
        False,
        {
            ReasonCode.NOT_LEADER: "ask the agent that leads",
            ReasonCode.NOT_SETTLED: "wait; if it lasts, see whether etcd is reached",
            ReasonCode.STOPPING: "another agent takes over",
            ReasonCode.PAUSED: "loadline resume MODEL",
            ReasonCode.BUS_DOWN: "see whether NATS is reached",
        },
    ),
    ("OptimizationFailed", False, {ReasonCode.PLANNER_FAILED: "scale by hand meanwhile, or take another planner"}),
    (
        "InvalidConfiguration",
        False,
        {
            ReasonCode.PROFILE_UNUSABLE: "",
            ReasonCode.SLA_INFEASIBLE: "",
            ReasonCode.KV_CACHE_TOO_SMALL: "mend max_kv_tokens, or use workers with a larger cache",
        },
    ),
    (
        "MetricsUnavailable",
        False,
        {
            ReasonCode.NO_WORKERS: "see why no worker starts",
            ReasonCode.NO_DATA: "see whether workers reach NATS, and what is refused",
            ReasonCode.TRAFFIC_UNKNOWN: "see whether frontends report",
            ReasonCode.ENGINE_LEARNING: "",
            ReasonCode.LOAD_LEARNING: "wait until workers have reported some latencies",
            ReasonCode.NO_OPINION: "see what the other reasons lack",
        },
    ),
    (
        "ResourceConstrained",
        False,
        {
            ReasonCode.CAPACITY_LIMITED: "add GPUs and raise allocation.capacity, or let other models have fewer",
            ReasonCode.QUOTA_LIMITED: "raise the gpu_quota of its namespace, or let its other models have fewer",
            ReasonCode.GIVES_WAY: "add GPUs, or change a priority",
            ReasonCode.GPU_BUDGET_MAX: "raise gpu_budget_max, or wait for drains",
            ReasonCode.GPU_BUDGET_GUARD_HOLD: "widen the band of gpu_budget_min and gpu_budget_max",
            ReasonCode.GPU_BUDGET_RECONCILE: "raise gpu_budget_max",
            ReasonCode.FLEET_GPU_BUDGET_MAX: "raise fleet.gpu_budget_max, or wait for other models to shrink",
        },
    ),
    (
        "ResourceConstrained",
        False,
        {ReasonCode.GPUS_OCCUPIED: "wait for workers that drain; if it lasts, add GPUs, or change a priority"},
    ),
    ("SkippedProcessing", True, {ReasonCode.ADVISE_ONLY: "set no_operation = false to have it done"}),
    (
        "CapacitySafetyOverride",
        True,
        {
            ReasonCode.NO_DATA_NO_SHRINK: "see why workers are silent",
            ReasonCode.METRIC_MISSING: "see why no worker reports the other metric",
            ReasonCode.SATURATION_VETO: "nothing to do, or recalibrate the queueing model",
            ReasonCode.SHRINK_UNSAFE: "nothing to do",
            ReasonCode.REPLACEMENT_NOT_READY: "nothing to do, or see why the others do not start",
        },
    ),
    ("CapacityOnlyMode", True, {ReasonCode.SATURATION_ALONE: "see what the queueing model lacks"}),
)
"""What a reason makes of ``OptimizationReady``, the worst first, and what to do where the sentence does not say it."""
_VERDICTS: Final[dict[ReasonCode, tuple[int, ConditionReason, bool, str]]] = {
    code: (rank, reason, status, remedy)
    for rank, (reason, status, remedies) in enumerate(_BY_CODE)
    for code, remedy in remedies.items()
}
_ONE_SIDE_LEADS: Final = frozenset({ReasonCode.SATURATION_ALONE, ReasonCode.QUEUEING_ALONE})
"""Of two planners one leads: what the other lacks is no failure."""
_LACKS: Final = frozenset({"InvalidConfiguration", "MetricsUnavailable"})


def conditions(
    model: Model,
    opinion: Recommendation,
    rails: Sequence[Reason],
    before: Sequence[Condition],
    now: int,
    *,
    fleet: FleetKnobs,
    by_traffic: bool,
) -> tuple[Condition, ...]:
    """Both conditions of a model at ``now`` (ms).

    Args:
        model: What is believed of it.
        opinion: What its planner has just said.
        rails: What bounded or held that.
        before: The conditions until now: a status that stays keeps its time.
        now: Unix time in ms.
        fleet: When a worker is silent, and how many must not be.
        by_traffic: Whether its planner needs its traffic.
    """
    since = {one.name: (one.status, one.since_ms) for one in before}

    def one(name: ConditionName, found: tuple[bool, ConditionReason, str]) -> Condition:
        status, reason, message = found
        was, since_ms = since.get(name, (not status, now))
        return Condition(name, status, reason, message, since_ms if was is status else now)

    return (
        one("MetricsAvailable", _metrics(model, now, fleet, by_traffic=by_traffic)),
        one("OptimizationReady", _optimization(model, opinion, rails, now)),
    )


def _metrics(model: Model, now: int, fleet: FleetKnobs, *, by_traffic: bool) -> tuple[bool, ConditionReason, str]:
    """Whether enough is heard: the first pool that is silent, or the traffic."""
    for pool in model.pools.values():
        silent = _silence(pool, fleet, now)
        if silent is not None:
            return False, *silent
    if by_traffic and not model.traffic.is_reporting(now):
        return False, "MetricsMissing", "no frontend reports traffic: see whether frontends run and reach NATS"
    return True, "MetricsFound", "enough ready workers of every pool report"


def _silence(pool: Pool, fleet: FleetKnobs, now: int) -> tuple[ConditionReason, str] | None:
    """What is not heard of a pool; None: enough is, or nothing is expected of it."""
    if not pool.ready:
        if not pool.effective_target(now):
            return None
        return "MetricsMissing", f"no worker of pool {pool.name} is ready: see why none starts"
    if pool.fresh and pool.has_quorum(fleet.quorum_ratio):
        return None
    heard = any(worker.seen_at_ms >= 0 for worker in pool.workers.values() if worker.counted_as == "ready")
    remedy = "see whether they run, reach NATS, and what is refused"
    few = f"{pool.fresh} of {pool.ready} ready workers of pool {pool.name} report"
    if heard:
        return "MetricsStale", f"{few}, the others have been silent for {fleet.stale_after_ms} ms or more: {remedy}"
    return "MetricsMissing", f"{few}, and none ever did: {remedy}"


def _optimization(
    model: Model, opinion: Recommendation, rails: Sequence[Reason], now: int
) -> tuple[bool, ConditionReason, str]:
    """Whether what the planner wants is done: the worst of what was said."""
    worst: tuple[int, ConditionReason, bool, str] | None = None
    why: Reason | None = opinion.reasons[0] if opinion.reasons else None
    led = any(reason.code in _ONE_SIDE_LEADS for reason in opinion.reasons)
    for found in (*rails, *opinion.reasons):
        verdict = _VERDICTS.get(found.code)
        if verdict is None or (worst is not None and worst[0] <= verdict[0]):
            continue
        if verdict[1] == "ResourceConstrained" and not _lacks_workers(found):
            continue
        if _expects_nothing(model, found, now) or (
            led and verdict[1] in _LACKS and found.code is not ReasonCode.NO_OPINION
        ):
            continue
        worst, why = verdict, found
    sentence = why.sentence() if why is not None else ""
    if worst is None:
        return True, "OptimizationSucceeded", sentence
    _, reason, status, remedy = worst
    return status, reason, f"{sentence}: {remedy}" if remedy else sentence


def _lacks_workers(reason: Reason) -> bool:
    """Whether a rail left fewer workers than were wanted: some of them raise counts too."""
    return reason.numbers["allowed"] < reason.numbers["wanted"]


def _expects_nothing(model: Model, reason: Reason, now: int) -> bool:
    """Whether a pool has no workers because it is to have none."""
    pool = model.pools.get(reason.pool)
    return reason.code is ReasonCode.NO_WORKERS and pool is not None and pool.effective_target(now) == 0
