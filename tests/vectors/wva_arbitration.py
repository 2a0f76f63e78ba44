"""Answers to the arbitration cases of the Workload Variant Autoscaler."""

from typing import Any

from loadline.core.planning.arbitration import arbitrate
from tests.vectors.answering import Answer, only


def arbitration(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "analysis", "capacity_target", "model_target", "current", "scale_down_safe")
    missing = "analysis" in given and given["analysis"] is None
    current = given["current"]
    saturation = None if missing else given["capacity_target"]
    found = arbitrate(current, saturation, given["model_target"], shrink_safe=given.get("scale_down_safe", False))
    step = (found.target > current) - (found.target < current)
    return {
        "target": found.target,
        "safety_override": found.vetoed,
        "action": {1: "scale-up", 0: "no-change", -1: "scale-down"}[step],
    }


ANSWERS: dict[str, Answer] = {"wva.arbitration": arbitration}
