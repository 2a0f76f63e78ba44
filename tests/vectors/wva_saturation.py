"""Answers of the saturation planner's arithmetic to the cases of the Workload Variant Autoscaler."""

from statistics import median
from typing import Any

from loadline.config import parse, validate
from loadline.core.engines import token_capacity
from loadline.core.engines.token_capacity import ObservedCapacity, TokenLimits, WorkerKv
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.arbitration import arbitrate
from loadline.core.planning.sizing import headroom
from loadline.core.planning.sizing.headroom import Candidate
from loadline.core.planning.sizing.saturation.rules import (
    Reading,
    SaturationAnalysis,
    SaturationThresholds,
    Variant,
    analyse,
    step,
)
from loadline.core.vocabulary.scalars import Role
from loadline.errors import ConfigError
from tests.support.fleet_harness import FleetHarness, registered
from tests.vectors.answering import Answer, only
from tests.vectors.cases import Case
from tests.vectors.wva_arbitration import vetoed

CONFIG = {
    "kvCacheThreshold": "kv_cache_threshold",
    "queueLengthThreshold": "queue_length_threshold",
    "kvSpareTrigger": "kv_spare_trigger",
    "queueSpareTrigger": "queue_spare_trigger",
}
ROLES: dict[str, Role] = {"prefill": "prefill", "decode": "decode", "both": "aggregated"}


def _analyse(given: dict[str, Any]) -> SaturationAnalysis:
    config = given["config"]
    thresholds = SaturationThresholds(
        config["kv_threshold"], config["queue_threshold"], config["kv_spare_trigger"], config["queue_spare_trigger"]
    )
    return analyse([Reading(one["kv"], one["queue"]) for one in given["replicas"]], thresholds)


def _analysis(found: SaturationAnalysis) -> dict[str, Any]:
    return {
        "avg_spare_kv": found.kv_headroom,
        "avg_spare_queue": found.queue_headroom,
        "non_saturated": found.unsaturated,
        "scale_down_safe": found.scale_down_safe,
        "scale_up": found.scale_up,
        "total": found.workers,
    }


def analyser(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "config", "replicas")
    return _analysis(_analyse(given))


def targets(given: dict[str, Any]) -> dict[str, int]:
    only(given, "scale_up", "scale_down_safe", "variants")
    up, safe = given.get("scale_up", False), given.get("scale_down_safe", False)
    analysis = SaturationAnalysis(
        workers=0, unsaturated=0, kv_headroom=0.0, queue_headroom=0.0, scale_up=up, scale_down_safe=safe
    )
    return step(
        [Variant(one["name"], one["cost"], one["ready"], one["current"], one["desired"]) for one in given["variants"]],
        analysis,
    )


def oracle(given: dict[str, Any]) -> dict[str, Any]:
    """Return analysis, targets and arbitration of one evaluation."""
    only(given, "config", "replicas", "states", "model_targets")
    found, costs = _analyse(given), {one["variant"]: one["cost"] for one in given["replicas"]}
    states = {one["variant"]: one for one in given["states"]}
    names = [one["variant"] for one in given["replicas"]]
    variants = [
        Variant(name, cost, names.count(name), states[name]["current"], states[name]["desired"])
        for name, cost in costs.items()
    ]
    counts = step(variants, found)
    model = given["model_targets"]
    arbitration = None
    if model is not None:
        arbitration = [
            _arbitrated(name, states[name]["current"], counts.get(name), model.get(name), safe=found.scale_down_safe)
            for name in sorted(counts.keys() | model.keys())
        ]
    return {"analysis": _analysis(found), "capacity_targets": counts, "arbitration": arbitration}


def _arbitrated(name: str, current: int, saturation: int | None, model: int | None, *, safe: bool) -> dict[str, Any]:
    found = arbitrate(current, saturation, model, shrink_safe=safe)
    moved = (found.target > current) - (found.target < current)
    action = {1: "scale-up", 0: "no-change", -1: "scale-down"}[moved]
    return {"variant": name, "target": found.target, "safety_override": vetoed(found), "action": action}


def config_validate(given: dict[str, Any]) -> str:
    only(given, *CONFIG)
    knobs = "\n".join(f"{CONFIG[key]} = {value}" for key, value in given.items())
    text = f'[[models]]\nname = "m"\nplanner = "saturation"\n[models.saturation]\n{knobs}\n'
    text += '[[models.pools]]\nname = "d"\nrole = "decode"\n'
    try:
        validate(parse(text, "loadline.toml", {}))
    except ConfigError:
        return "error"
    return "ok"


def capacity(given: dict[str, Any]) -> dict[str, Any]:
    """Return k1, k2 and the lesser of them, under the keys that a case uses."""
    if "stored_effective" in given:
        only(given, "stored_effective", "live_pods", "avg_out")
        return {"effective": token_capacity.empty_pool_tokens(given["stored_effective"], 0.0, None)}
    if "compatible_live_effective" in given:
        only(given, "derived", "compatible_live_effective")
        similar = given["compatible_live_effective"]
        return {"effective": token_capacity.empty_pool_tokens(None, given["derived"], similar)}
    if "max_batched_tokens" in given:
        only(given, "max_batched_tokens", "max_num_seqs", "avg_in", "avg_out")
        flags = given["max_batched_tokens"], given["max_num_seqs"]
        return {"k2": token_capacity.derived_tokens(given["avg_in"], given["avg_out"], *flags)}
    only(given, "total_kv_tokens", "tokens_in_use", "queue", "kv_threshold", "queue_threshold", "history", "cycles")
    limits, observed = TokenLimits(given["kv_threshold"], given.get("queue_threshold", 5)), ObservedCapacity()
    effective = 0.0
    for cycle in given.get("cycles", [given]):
        worker = WorkerKv(given["total_kv_tokens"], cycle["tokens_in_use"], cycle["queue"])
        effective = token_capacity.worker_tokens(worker, limits, observed, 0.0, None)
        if worker.is_queueing(limits.queue_threshold) and worker.is_informative(limits.kv_threshold):
            observed.record(0.0, worker.tokens_in_use)
    k1 = token_capacity.memory_tokens(given["total_kv_tokens"], given["kv_threshold"])
    return {"k1": k1, "k2": observed.mean(0.0), "effective": effective, "effective_after": effective}


def demand(given: dict[str, Any]) -> Any:
    """Return the tokens in use and those of requests that wait at workers and at frontends."""
    if "epp_queue_size" not in given:
        only(given, "queue", "avg_in", "avg_out", "role")
        tokens = token_capacity.request_tokens(ROLES[given["role"]], given["avg_in"], given["avg_out"])
        return given["queue"] * tokens
    only(given, "tokens_in_use", "epp_queue_size", "epp_queue_bytes", "avg_in", "avg_out", "prefix_hit", "roles")
    size = given["epp_queue_size"]
    # Frontends here report prompt lengths in tokens; a token is four bytes.
    isl = max(given["avg_in"], given["epp_queue_bytes"] / 4 / size) if size else 0.0
    isl *= 1.0 - given.get("prefix_hit", 0.0)
    held = given.get("tokens_in_use", 0)
    total = {"total": "aggregated", "total_demand": "aggregated", "prefill": "prefill", "decode": "decode"}
    return {
        name: held + size * token_capacity.request_tokens(role, isl, given["avg_out"])  # type: ignore[arg-type]
        for name, role in total.items()
    }


def supply(given: dict[str, Any]) -> Any:
    if "values" in given:
        only(given, "values")
        return median(given["values"])
    only(given, "scraped_instances", "current_pods", "pending_pods")
    ready = given["current_pods"] - given["pending_pods"]
    pool = PoolKnobs("decode", "decode")
    world = FleetHarness([pool], 0)
    for number in range(ready):
        worker = registered(f"w{number}", ranks=given["scraped_instances"] // ready)
        world.fleet.register(worker, world.now)
    world.pool("decode").set_decided(given["current_pods"], world.now)
    found = world.pool("decode").worker_counts(world.now)
    return {"replica_count": found.ready, "pending_instances": found.pending}


def universal_threshold(given: dict[str, Any]) -> dict[str, float]:
    only(given, "demand", "supply", "anticipated", "scale_up", "scale_down")
    found = headroom.balance(
        given["demand"], given["supply"], given["anticipated"], given["scale_up"], given["scale_down"]
    )
    return {"required": found.required, "spare": found.headroom}


def cost_aware(given: dict[str, Any]) -> dict[str, int]:
    only(given, "required", "spare", "variants", "role_spare", "role_required")
    choices = [_choice(one) for one in given["variants"]]
    if "role_spare" not in given and "role_required" not in given:
        return _counts(given["required"], given["spare"], choices)
    counts: dict[str, int] = {}
    for one in choices:  # each variant is named after its role in the case
        required, spare = (given.get(key, {}).get(one.name, 0) for key in ("role_required", "role_spare"))
        counts |= _counts(required, spare, [one])
    return counts


def _choice(given: dict[str, Any]) -> Candidate:
    only(given, "name", "cost", "prc", "current", "min", "max")
    return Candidate(
        given["name"], given["cost"], given["prc"], given["current"], given.get("min", 0), given.get("max")
    )


def _counts(required: float, spare: float, choices: list[Candidate]) -> dict[str, int]:
    if required > 0:
        return headroom.grow(required, choices)
    return headroom.shrink(spare, choices)


ANSWERS: dict[str, Answer] = {
    "wva.capacity_analyzer": analyser,
    "wva.capacity_targets": targets,
    "wva.capacity_oracle": oracle,
    "wva.config_validate": config_validate,
    "wva.v2_capacity": capacity,
    "wva.v2_demand": demand,
    "wva.v2_supply": supply,
    "wva.universal_threshold": universal_threshold,
    "wva.cost_aware": cost_aware,
}


def learns_at_low_usage(case: Case) -> bool:
    given = case.given
    if case.op != "wva.v2_capacity" or given.get("queue", 0) < given.get("queue_threshold", 5):
        return False
    limits = TokenLimits(given["kv_threshold"])
    return not WorkerKv(given["total_kv_tokens"], given["tokens_in_use"], 0.0).is_informative(limits.kv_threshold)


def bound_by_memory(case: Case) -> dict[str, float]:
    return {"effective": case.given["total_kv_tokens"] * case.given["kv_threshold"]}


def has_ranks(case: Case) -> bool:
    return case.op == "wva.v2_supply" and "scraped_instances" in case.given


def counts_workers(case: Case) -> dict[str, int]:
    pending = case.given["pending_pods"]
    return {"replica_count": case.given["current_pods"] - pending, "pending_instances": pending}


def lacks_a_target(case: Case) -> bool:
    if case.op != "wva.capacity_oracle" or case.given["model_targets"] is None:
        return False
    return {one["variant"] for one in case.given["replicas"]} != set(case.given["model_targets"])


def without_arbitration(case: Case) -> dict[str, Any]:
    return {key: value for key, value in case.expected.items() if key != "arbitration"}
