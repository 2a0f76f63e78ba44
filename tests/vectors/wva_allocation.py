"""Answers of the allocation to the cases of the Workload Variant Autoscaler about limited supplies.

In the original, a priority is a rank (1 is first) in the greedy solver, as here, and a weight elsewhere. A weight is
converted to the inverse of a priority.
"""

from math import lcm
from typing import Any

from loadline.core.planning.allocation import greedy
from loadline.core.planning.allocation.contenders import Bundle, Contender, RemainingSupply
from loadline.core.planning.allocation.covers import cover
from loadline.core.planning.allocation.regret import grant_workers
from loadline.core.planning.allocation.weighted import WeightedClaim, fair_shares
from loadline.core.vocabulary.allocations import (
    Allocation,
    AllocationProblem,
    ModelRequest,
    PoolOption,
    RoleRequest,
    SaturationPolicy,
)
from loadline.core.vocabulary.scalars import Role
from tests.vectors.answering import Answer, NotCovered, only

POLICIES: dict[str, SaturationPolicy] = {
    "None": "none",
    "PriorityExhaustive": "priority_exhaustive",
    "PriorityRoundRobin": "priority_round_robin",
    "RoundRobin": "round_robin",
}


def greedy_solver(given: dict[str, Any]) -> dict[str, Any]:
    """Run the solver from the candidates on, since the cases give them with their values."""
    only(given, "saturation_policy", "delayed_best_effort", "capacity_by_type", "servers")
    supply = RemainingSupply(dict(given["capacity_by_type"]))
    contenders = [_contender(server) for server in given["servers"]]
    delayed = given["delayed_best_effort"]
    counts = grant_workers(contenders, supply, POLICIES[given["saturation_policy"]], delayed=delayed)
    result = {server["name"]: _result(server, counts.get(server["name"], {})) for server in given["servers"]}
    return {"result": result, "left": supply.left}


def _contender(server: dict[str, Any]) -> Contender:
    only(server, "name", "priority", "units_per_replica", "candidates")
    units = server["units_per_replica"]
    options, candidates = [], []
    for one in server["candidates"]:
        acc, replicas = one["acc"], one["replicas"]
        options.append(PoolOption(acc, 1.0 / replicas, one["cost"] / replicas, {acc: units[acc]}))
        candidates.append(Bundle({acc: replicas}, {acc: units[acc] * replicas}, one["value"]))
    part = RoleRequest("aggregated", 1.0, tuple(options))
    return Contender(ModelRequest(server["name"], server["priority"], (part,)), tuple(candidates))


def _result(server: dict[str, Any], counts: dict[str, int]) -> dict[str, Any] | None:
    for one in server["candidates"]:
        count = counts.get(one["acc"], 0)
        if count:
            share = count / one["replicas"]
            return {"acc": one["acc"], "replicas": count, "cost": one["cost"] * share, "value": one["value"] * share}
    return None


def greedy_by_score(given: dict[str, Any]) -> dict[str, int]:
    only(given, "models", "gpu_limits")
    weights = [_weight(model) for model in given["models"]]
    whole = lcm(*weights)
    wants = [
        ModelRequest(str(number), whole // weight, _parts(model))
        for number, (model, weight) in enumerate(zip(given["models"], weights, strict=True))
    ]
    found = greedy(AllocationProblem(tuple(wants), given["gpu_limits"], "weighted"))
    more = {pool: count for counts in found.counts.values() for pool, count in counts.items()}
    return {name: standing + more[name] for model in given["models"] for name, standing in _current(model).items()}


def _weight(model: dict[str, Any]) -> int:
    score = sum(one["score"] for one in model.get("analyzers", ())) or model.get("score", 1)
    return int(model.get("priority", 1) * score)


def _current(model: dict[str, Any]) -> dict[str, int]:
    current = model["current"]
    return current if isinstance(current, dict) else {model["variant"]: current}


def _parts(model: dict[str, Any]) -> tuple[RoleRequest, ...]:
    """Return the requests beyond the current workers, by the analyzer that requests the most."""
    keys = ("variant", "required", "role_required", "prc", "gpus_per_replica", "acc", "current", "priority", "score")
    only(model, *keys, "analyzers")
    takes = {model["acc"]: model["gpus_per_replica"]}
    if "role_required" in model:
        roles: list[Role] = ["prefill", "decode"]
        only(model["role_required"], *roles)
        return tuple(
            RoleRequest(role, model["role_required"][role], (PoolOption(role, model["prc"], 1.0, takes),))
            for role in roles
        )
    needs = [one["remaining"] for one in model.get("analyzers", ())] or [model["required"]]
    return (RoleRequest("aggregated", max(needs), (PoolOption(model["variant"], model["prc"], 1.0, takes),)),)


def greedy_by_saturation(given: dict[str, Any]) -> Any:
    """Allocate by spare capacity: the least comes first, then the lowest cost."""
    only(given, "gpus", "decisions", "current", "target", "max_replicas")
    if "decisions" not in given:
        decision = {"name": "v", "current": given["current"], "target": given["target"], "gpus_per_replica": 1}
        found = _by_saturation(given["gpus"], [decision | {"spare": 0.0, "cost": 0.0}], given["max_replicas"])
        return given["current"] + found.counts["v"]["v"]
    found = _by_saturation(given["gpus"], given["decisions"], None)
    more = {one["name"]: found.counts[one["name"]][one["name"]] for one in given["decisions"]}
    gpus = sum(max(1, one["gpus_per_replica"]) * more[one["name"]] for one in given["decisions"])
    replicas = {one["name"]: one["current"] + more[one["name"]] for one in given["decisions"]}
    return {**replicas, "limited": bool(found.unserved), "gpus": gpus}


def _by_saturation(gpus: int, decisions: list[dict[str, Any]], most: int | None) -> Allocation:
    wants = []
    for priority, one in enumerate(sorted(decisions, key=lambda one: (one["spare"], one["cost"], one["name"])), 1):
        only(one, "name", "current", "target", "gpus_per_replica", "spare", "cost")
        more = float(one["target"] - one["current"])
        takes = {"gpus": max(1, one["gpus_per_replica"])}
        bound = {} if most is None else {"replicas_max": most - one["current"]}
        part = RoleRequest("aggregated", more, (PoolOption(one["name"], 1.0, one["cost"], takes, **bound),))
        wants.append(ModelRequest(one["name"], priority, (part,)))
    return greedy(AllocationProblem(tuple(wants), {"gpus": gpus}, "priority_exhaustive"))


def rescale(given: dict[str, Any]) -> Any:
    if "models" in given:
        only(given, "models", "budget")
        claims = [WeightedClaim(one["priority"] * one["demand"], one["floor"], one["cap"]) for one in given["models"]]
        shares = fair_shares(claims, given["budget"])
        names = [one["id"] for one in given["models"]]
        short = sum(one["floor"] for one in given["models"]) > given["budget"]
        return {"targets": dict(zip(names, shares, strict=True)), "floors_exceed_budget": short}
    if "weights" in given:
        only(given, "total", "weights")
        claims = [WeightedClaim(weight, 0, given["total"]) for weight in given["weights"].values()]
        return dict(zip(given["weights"], fair_shares(claims, given["total"]), strict=True))
    if "demand" not in given:
        raise NotCovered("no answer for such a case of rescale")
    only(given, "demand", "prc")
    counts = cover(RoleRequest("aggregated", given["demand"], (PoolOption("pool", given["prc"], 1.0),)))
    return counts and counts["pool"]


ANSWERS: dict[str, Answer] = {
    "wva.greedy_solver": greedy_solver,
    "wva.greedy_by_score": greedy_by_score,
    "wva.greedy_by_saturation": greedy_by_saturation,
    "wva.rescale": rescale,
}
