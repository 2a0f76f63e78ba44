"""Answers to the cases of the Workload Variant Autoscaler on arbitration and on scaling to zero."""

from typing import Any

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.arbitration import Arbitration, arbitrate
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.idle_harness import AFTER_MS, IdleHarness
from tests.vectors.answering import Answer, only


def vetoed(found: Arbitration) -> bool:
    """Return True if a shrink was vetoed."""
    return found.code in {ReasonCode.SATURATION_VETO, ReasonCode.SHRINK_UNSAFE}


def arbitration(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "analysis", "capacity_target", "model_target", "current", "scale_down_safe")
    missing = "analysis" in given and given["analysis"] is None
    current = given["current"]
    saturation = None if missing else given["capacity_target"]
    found = arbitrate(current, saturation, given["model_target"], shrink_safe=given.get("scale_down_safe", False))
    step = (found.target > current) - (found.target < current)
    return {
        "target": found.target,
        "safety_override": vetoed(found),
        "action": {1: "scale-up", 0: "no-change", -1: "scale-down"}[step],
    }


def scale_to_zero(given: dict[str, Any]) -> dict[str, int]:
    """Return the counts; requests of the retention period become arrivals, and a failed query becomes a silent
    frontend.
    """
    only(given, "enabled", "requests_in_retention", "targets", "costs")
    variants, asked = given["targets"], given.get("requests_in_retention", "error")
    pools = [PoolKnobs(name, "aggregated", replicas_min=0) for name in variants]
    world = IdleHarness(*pools, workers=0, after_ms=AFTER_MS if given["enabled"] else 0)
    for name, replicas in variants.items():
        cost = given.get("costs", {}).get(name, 1.0)
        world.pool(name).accelerator = AcceleratorKnobs(name, cost_per_hour=cost)
        world.add_workers(name, replicas)
        world.pool(name).decided = replicas
    if asked != "error":
        world.report_traffic()
        world.report_traffic(arrivals=asked)
        world.report_traffic(AFTER_MS // 1_000 - 1)
    return world.bounded_counts()


ANSWERS: dict[str, Answer] = {"wva.arbitration": arbitration, "wva.scale_to_zero": scale_to_zero}
