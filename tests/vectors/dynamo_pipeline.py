"""Answers of the threshold planner and the guardrails to Dynamo's cases of whole planning ticks."""

from typing import Any

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.planning.planners.threshold import ThresholdKnobs, ThresholdPlanner
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from tests.support.fleet_harness import FleetHarness
from tests.vectors.answering import Answer, NotCovered, only
from tests.vectors.dynamo_terms import ROLES

TICK_MS = 5_000
PARTS = 1_000
"""Factor of queues and thresholds: the original's queue is a fraction of a context length, and requests are integers
here.
"""
KV_SCALE = 0.1
"""Factor of KV usage and thresholds: in the original, waiting requests count as usage, which may then exceed 1."""
KNOBS = ThresholdKnobs(
    metric_pulling_interval_ms=TICK_MS,
    adjustment_interval_ms=TICK_MS - 1,  # each tick considers only its own observation
    prefill_queue_scale_up_threshold=1.0 * PARTS,
    prefill_queue_scale_down_threshold=0.1 * PARTS,
    decode_kv_scale_up_threshold=1.0 * KV_SCALE,
    decode_kv_scale_down_threshold=0.6 * KV_SCALE,
)
WHY = {
    ReasonCode.KV_USAGE_HIGH: "scale_up",
    ReasonCode.PREFILL_QUEUE_HIGH: "scale_up",
    ReasonCode.WORKERS_PENDING: "scaling_in_progress",
}


def ticks(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a decision every 5 s, each for its own observation; the first observation is there from the start."""
    only(given, "observations", "config", "p_caps", "d_caps")
    only(given["config"], "optimization_target")
    if given["config"].get("optimization_target") != "throughput":
        raise NotCovered("only the fixed levels of the target throughput are known here")
    observations = given["observations"]
    harness = FleetHarness([PoolKnobs("prefill", "prefill"), PoolKnobs("decode", "decode")], workers=0)
    planner, guard = (
        ThresholdPlanner(KNOBS),
        Guardrails(GuardrailKnobs(stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0), HardLimits(1.0, 0, None)),
    )
    start = harness.now
    _observe(harness, given, observations[0])
    planner.plan(harness.refresh(), harness.now)
    said = []
    for number, observation in enumerate(observations, 1):
        harness.now = start + number * TICK_MS
        _observe(harness, given, observation)
        recommendation = planner.plan(harness.refresh(), harness.now)
        targets = guard.apply(harness.refresh(), recommendation.targets, Constraints(start), harness.now).targets
        said.append(
            {
                "at_s": (harness.now - start) / 1_000,
                "load_reason": _why(recommendation),
                "scale_to": _changed(harness, targets),
            }
        )
    return said


def _observe(harness: FleetHarness, given: dict[str, Any], observation: dict[str, Any]) -> None:
    only(observation, "counts", "expected", "decode", "prefill")
    for at, role in enumerate(ROLES):
        count = observation["counts"][at]
        if count != 1 or len(observation[role]) != 1:
            raise NotCovered("of several workers the original takes the fullest, the planner here their mean")
        pool = harness.pool(role)
        harness.add_workers(role, count - len(pool.workers))
        if pool.decided is None:
            pool.set_decided(count, harness.now)
        expected = observation.get("expected", observation["counts"])[at]
        if expected != pool.decided:
            pool.set_decided(expected, harness.now)
    (prefill,), (decode,) = observation["prefill"], observation["decode"]
    harness.report("prefill", waiting=round(prefill["qpt"] / given["p_caps"]["ctx"] * PARTS))
    harness.report("decode", kv=decode["kv"] / given["d_caps"]["kv"] * KV_SCALE)


def _why(recommendation: Recommendation) -> str | None:
    return next((WHY[reason.code] for reason in recommendation.reasons if reason.code in WHY), None)


def _changed(harness: FleetHarness, targets: dict[str, int]) -> list[int] | None:
    standing = {role: harness.pool(role).effective_target(harness.now) for role in ROLES}
    return None if targets == standing else [targets[role] for role in ROLES]


ANSWERS: dict[str, Answer] = {"v3.ticks": ticks}
