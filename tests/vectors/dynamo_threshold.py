"""Answers of the threshold planner to the cases of Dynamo's first planner."""

from typing import Any

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.planning.planners.threshold import ThresholdKnobs, ThresholdPlanner
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from tests.support.fleet_harness import FleetHarness
from tests.vectors.answering import Answer, only

PULL_MS = 1_000
PARTS = 10
"""Factor of queues and thresholds: a sample of the original may be a mean, such as 0.1, and requests are integers here.
"""
LIMITS = ("max_gpu", "p_gpu", "d_gpu", "min_endpoint")
GRACE = 3
REPLICAS_MAX = 1_000
POOLS = {"p": "prefill", "d": "decode"}
WHY = {
    ReasonCode.PREFILL_QUEUE_HIGH: "prefill_up",
    ReasonCode.PREFILL_QUEUE_LOW: "prefill_down",
    ReasonCode.QUEUE_TREND_FALLING: "prefill_up_blocked_by_trend",
    ReasonCode.KV_USAGE_HIGH: "decode_up",
    ReasonCode.KV_USAGE_LOW: "decode_down",
    ReasonCode.ADJUSTMENT_INTERVAL: "workers_changed",
}


def step(given: dict[str, Any]) -> dict[str, Any]:
    """Run one adjustment interval of samples; the last one describes the fleet at the time of the decision."""
    only(given, "p", "d", "queue", "kv", "p_at_start", "d_at_start", "grace", *LIMITS)
    samples = max(len(given["queue"]), len(given["kv"]), 2)
    queue, kv = _spread(given["queue"], samples), _spread(given["kv"], samples)
    harness = FleetHarness([_pool(given, key) for key in POOLS], workers=0)
    for key, name in POOLS.items():
        harness.add_workers(name, given.get(f"{key}_at_start", given[key]))
        harness.pool(name).set_decided(given.get(f"{key}_at_start", given[key]), harness.now)
    # The last sample arrives before the next one is due, so it counts once.
    interval_ms = (samples - 1) * PULL_MS - 1
    planner = ThresholdPlanner(
        ThresholdKnobs(
            metric_pulling_interval_ms=PULL_MS,
            adjustment_interval_ms=interval_ms,
            prefill_queue_scale_up_threshold=5 * PARTS,
            prefill_queue_scale_down_threshold=0.2 * PARTS,
        )
    )
    for number in range(samples):
        last = number == samples - 1
        harness.now += 0 if number == 0 else PULL_MS - last
        if last:
            _change(harness, given)
            if given.get("grace"):
                harness.pool("decode").scaled_up_at_ms = harness.now - (GRACE - given["grace"]) * interval_ms
        harness.report("prefill", waiting=round(queue[number] * PARTS))
        harness.report("decode", kv=min(1.0, kv[number]))
        recommendation = planner.plan(harness.refresh(), harness.now)
    draft = _guard(given).apply(harness.refresh(), recommendation.targets, Constraints(harness.now), harness.now)
    return _said(recommendation, draft.targets)


def _spread(values: list[float], samples: int) -> list[float]:
    """Return the values, or their mean as often as the other signal has samples."""
    return values if len(values) == samples else [sum(values) / len(values)] * samples


def _change(harness: FleetHarness, given: dict[str, Any]) -> None:
    for key, name in POOLS.items():
        change = given[key] - given.get(f"{key}_at_start", given[key])
        if change:
            harness.pool(name).set_decided(given[key], harness.now)
        harness.add_workers(name, max(0, change))
        for _ in range(-change):
            harness.remove_newest(name)


def _pool(given: dict[str, Any], key: str) -> PoolKnobs:
    name: Any = POOLS[key]
    least = given.get("min_endpoint", 1)
    return PoolKnobs(name, name, given.get(f"{key}_gpu", 1), least, REPLICAS_MAX)


def _guard(given: dict[str, Any]) -> Guardrails:
    """Return guardrails that limit only by the GPU budget and the minimum counts."""
    knobs = GuardrailKnobs(stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0)
    return Guardrails(knobs, HardLimits(1.0, 0, given.get("max_gpu")))


def _said(recommendation: Recommendation, targets: dict[str, int]) -> dict[str, Any]:
    trends = [reason.numbers["predicted"] for reason in recommendation.reasons if "predicted" in reason.numbers]
    return {
        "p": targets["prefill"],
        "d": targets["decode"],
        "trend": trends[0] / PARTS if trends else None,
        "why": [WHY[reason.code] for reason in recommendation.reasons if reason.code in WHY],
    }


ANSWERS: dict[str, Answer] = {"v0.step": step}
