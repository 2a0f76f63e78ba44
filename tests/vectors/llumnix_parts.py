"""Answers of migration planning to Llumnix's cases of components: metrics, filters, selectors, loop, commands."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np

from loadline.core.engines.arrays import Mask
from loadline.core.migration.failure_detection import detect_failures
from loadline.core.migration.filters import at_least, below, healthy, unreserved
from loadline.core.migration.knobs import MetricName, MigrationKnobs
from loadline.core.migration.load_view import METRICS, LoadView
from loadline.core.migration.outcomes import MigrationAmount
from loadline.core.migration.policies import build_policy
from loadline.core.migration.selectors import balance, consolidate
from loadline.core.vocabulary.events import PauseChanged
from loadline.core.vocabulary.migrations import Migration
from tests.support.fleet_harness import START
from tests.support.migration_world import MigrationWorld
from tests.vectors.answering import Answer, NotCovered, only
from tests.vectors.llumnix_world import ROLES, groups, names, view_of, world_of

KV: Final[MetricName] = "kv_cache_usage_ratio_projected"
BYSTANDERS: Final = ({"id": "bystander 1"}, {"id": "bystander 2"})
"""Healthy workers, since no worker counts as failed while most are silent."""
SAYS: Final[dict[str, Callable[[float], dict[str, Any]]]] = {
    "base": lambda value: {"kv_blocks_used": round(1_000 * value)},
    KV: lambda value: {"kv_blocks_used": round(1_000 * value)},
    "decode_batch_size": lambda value: {"decode_batch_requests": value},
    "num_waiting_requests": lambda value: {"waiting_requests": value},
    "num_requests": lambda value: {"running_requests": value},
    "all_prefills_tokens_num": lambda value: {"queued_prefill_tokens": value},
    "all_decodes_tokens_num": lambda value: {"decode_tokens": value},
}
"""Fields of a load report for which a metric has a given value."""


# -- metrics -----------------------------------------------------------------------------------------------------------


def _metric_name(given: dict[str, Any]) -> MetricName:
    name = KV if given["metric"] == "base" else given["metric"]
    if name not in METRICS:
        raise NotCovered(f"{name} is a metric of one request that is dispatched: a router's")
    return name


def metric(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    name = _metric_name(given)
    only(given, "metric", "status", "mode", "tpot_profile")
    world = world_of(given | {"instances": [{"id": "i", "status": given.get("status", {})}]}, case["shared"])
    (view,) = (view_of(world, group) for group in groups(world) if len(group.table))
    (value,) = view.metric(name).tolist()
    return {"value": None if math.isnan(value) else value}


def metric_order(case: dict[str, Any]) -> dict[str, bool]:
    """Compare two workers by a metric under both assignments of names, since names decide between equals."""
    given, name = case["given"], _metric_name(case["given"])
    only(given, "metric", "a", "b")
    first, second = _comes_first(name, given["a"], given["b"]), not _comes_first(name, given["b"], given["a"])
    return {"a_less_b": first and second, "b_less_a": not first and not second, "equal": first is not second}


def _comes_first(name: MetricName, value: float, other: float) -> bool:
    """Return True if worker ``a`` with the first value is ordered before worker ``b`` with the other."""
    world = MigrationWorld()
    world.join("a", 0, **SAYS[name](value))
    world.join("b", 0, **SAYS[name](other))
    view = _view(world)
    order = view.ordered(np.arange(2), name, 2, descending=False)
    return bool(view.table.keys[order[0]][1] == "a")


def _view(world: MigrationWorld) -> LoadView:
    (group,) = (group for group in groups(world) if len(group.table))
    return view_of(world, group)


# -- filters -----------------------------------------------------------------------------------------------------------


class FailureDetection:
    """Failure detection among some instances: those that failed, those in their failure domains, and those that stay
    healthy.
    """

    def __init__(self, given: dict[str, Any], instances: list[dict[str, Any]], domain: str = "instance") -> None:
        config = {key: given[key] for key in ("staleness_seconds",) if key in given} | {"failover_domain": domain}
        world = world_of({"config": config, "instances": [*instances, *BYSTANDERS]}, {})
        (knobs,) = world.settings.models
        boards = {group.name: group.table for group in groups(world)}
        found = detect_failures(boards, knobs.migration, (), world.controller.state.bus_since_ms, world.now)
        self.world, self._asked = world, [one["id"] for one in instances]
        self.own, self.affected, self.serving, self.of_role = set(), set(), set(), {}
        for group in groups(world):
            own = found.failed[group.name]
            affected = found.domains.affected(group.table, own)
            view = view_of(world, group, affected)
            self.own |= self._of(names(group, own))
            self.affected |= self._of(names(group, affected))
            self.serving |= self._of(names(group, healthy(view)))
            self.of_role[group.table.role] = self._of(names(group, np.ones(len(group.table), dtype=np.bool_)))

    def _of(self, found: list[str]) -> set[str]:
        return set(found) & set(self._asked)

    def without(self, kept: set[str]) -> list[str]:
        """Return the instances of the case that are not in ``kept``, in their order."""
        return [name for name in self._asked if name not in kept]


def filter_single(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    kind = given["filter"]
    if kind == "attribute":
        return {"filtered_out": _is_reserved(given)}
    if kind in {"metric_below", "not_metric_below"}:
        return {"filtered_out": not _passes_metric(given)}
    if kind not in {"schedulability", "staleness", "infer_type"}:
        raise NotCovered(f"no filter {kind}")
    only(given, "filter", "staleness_seconds", "instance", "infer_type")
    detected, name = FailureDetection(given, [given["instance"]]), given["instance"]["id"]
    if kind == "infer_type":
        return {"filtered_out": name not in detected.of_role[ROLES[given["infer_type"]]]}
    return {"filtered_out": name not in detected.serving, "marks_needs_failover": name in detected.own}


def _is_reserved(given: dict[str, Any]) -> bool:
    only(given, "filter", "key", "rejected", "instance")
    if given["key"] != "reserved":
        raise NotCovered("what a worker is kept for is the only attribute that is filtered by")
    detected = FailureDetection({}, [given["instance"]])
    (group,) = (group for group in groups(detected.world) if len(group.table))
    passes = unreserved(given["rejected"])(view_of(detected.world, group))
    return given["instance"]["id"] not in names(group, passes)


def _passes_metric(given: dict[str, Any]) -> bool:
    only(given, "filter", "metric", "threshold", "value")
    name, threshold = _metric_name(given), given["threshold"]
    world = MigrationWorld()
    world.join("i", 0, **SAYS[name](given["value"]))
    build = below if given["filter"] == "metric_below" else at_least
    return bool(build(name, lambda _: threshold)(_view(world)).all())


def filter_chain(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    only(given, "filters", "staleness_seconds", "instances")
    detected = FailureDetection(given, given["instances"])
    kept = {one["id"] for one in given["instances"]}
    for one in given["filters"]:
        kind, _, value = one.partition("=")
        if kind == "infer_type":
            kept &= detected.of_role[ROLES[value]]
        elif kind in {"schedulability", "staleness"}:
            kept &= detected.serving
        else:
            raise NotCovered(f"no filter {one}")
    return {"filtered_out": detected.without(kept)}


def filter_global(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    only(given, "filter", "domain", "instances", "staleness_seconds")
    detected = FailureDetection(given, given["instances"], given["domain"])
    if given["filter"] == "failover":
        return {"filtered_out": sorted(detected.affected)}
    return {"filtered_out": detected.without(detected.affected)}


def filter_flow(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    only(given, "single", "global", "instances", "staleness_seconds")
    (one,) = given["global"]
    kind, _, domain = one.partition(":")
    if kind != "failover" or not {"schedulability", "staleness"}.issuperset(given["single"]):
        raise NotCovered("no answer for these filters")
    detected = FailureDetection(given, given["instances"], domain)
    return {"remaining": sorted(detected.serving), "needs_failover": sorted(detected.own)}


# -- selectors and policies --------------------------------------------------------------------------------------------


def selector(case: dict[str, Any]) -> dict[str, Any]:
    """Return pairs of sources and destinations, with loads that never limit the amounts."""
    given = case["given"]
    only(given, "selector", "scope", "force_higher_to_lower", "src", "dst")
    loads = {one["id"]: one["metrics"][KV] for one in (*given["src"], *given["dst"])}
    units = {one["id"]: one.get("unit", "") for one in (*given["src"], *given["dst"])}
    instances = [
        {
            "id": name,
            "unit": units[name],
            "status": {
                "num_total_gpu_tokens": 1_000,
                "num_used_gpu_tokens": round(1_000 * load),
                "scheduler_running_to_decode_tokens_num": round(1_000 * load),
            },
        }
        for name, load in loads.items()
    ]
    world = world_of({"instances": instances, "tpot_profile": "T1"}, case["shared"])
    view = _view(world)
    select = {"metric_balance": balance(KV, by_unit=given.get("scope") == "unit"), "aggregate": consolidate}
    if given["selector"] not in select:
        raise NotCovered(f"no selector {given['selector']}")
    fits = MigrationAmount("NUM_REQ", "LR", 1.0, 1, 1)
    sources, destinations = (_rows(view, [one["id"] for one in given[side]]) for side in ("src", "dst"))
    found = select[given["selector"]](view, sources, destinations, lambda *_: fits)
    ends = [(view.table.keys[source][1], view.table.keys[destination][1]) for source, destination, _ in found]
    return {"pairs": [list(one) for one in ends]}


def _rows(view: LoadView, found: list[str]) -> Mask:
    return np.asarray([name in found for _, name in view.table.keys], dtype=np.bool_)


def policy_registry(case: dict[str, Any]) -> dict[str, Any]:
    only(case["given"], "policies")
    knobs = MigrationWorld().knobs
    kinds = []
    for name in case["given"]["policies"].split(","):
        (one,) = {made for role in ROLES.values() if (made := build_policy(name, knobs, role)) is not None}
        kinds.append("failover" if one.urgent else "load_balance")
    return {"count": len(kinds), "kinds": kinds}


# -- the loop and its commands -----------------------------------------------------------------------------------------


def loop(case: dict[str, Any]) -> dict[str, Any]:
    """Return the number of evaluations of all workers within a time."""
    given = case["given"]
    only(given, "interval_ms", "run_ms")
    world = MigrationWorld(MigrationKnobs(interval_ms=given["interval_ms"]))
    memory = world.controller.state.fleet.models["m"].migration
    dues = [memory.due_ms]
    while (world.controller.next_wake() or world.now) < START + given["run_ms"]:
        world.now = max(world.controller.next_wake() or 0, world.now + 1)
        world.handle()
        dues.append(memory.due_ms)
    cycles = sum(before != after for before, after in pairwise(dues))
    return {"cycles": cycles}


def execute(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    return _blocked(given) if "agents" in given else _outcome(given)


def _blocked(given: dict[str, Any]) -> dict[str, float]:
    """Return the virtual time for which workers that answered wait for the others."""
    only(given, "pairs", "agents", "timeout_s")
    world, silent = _failing(given["pairs"]), 1 if "never answers" in given["agents"] else 0
    asked = _resume(world)
    assert len(asked) == given["pairs"]
    world.now += 3
    for command in asked[silent:]:
        world.answer(command, requests=1)
        world.report_phase(command, "done", moved=1)
    answered_ms = world.now
    world.handle(world.worker("later"))
    while not world.handle(world.report("later", 10, 1, schedulable=False)):
        world.now += 1
    return {"cycle_blocked_s": (world.now - answered_ms) / 1_000.0}


def _failing(count: int) -> MigrationWorld:
    """Return a world with ``count`` failed workers of one request each and as many healthy ones, before any command."""
    world = MigrationWorld()
    world.handle(PauseChanged("m", paused=True))
    for number in range(count):
        world.join(f"failed{number:03}", 10, 1, schedulable=False)
        world.join(f"healthy{number:03}", 0, 0)
    return world


def _resume(world: MigrationWorld) -> list[Migration]:
    """Resume the model; return the commands."""
    return world.handle(PauseChanged("m", paused=False))


def _outcome(given: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded outcome of commands."""
    only(given, "pairs", "servers")
    world = _failing(given["pairs"])
    asked = _resume(world)
    says = {"none listening": None, "answers success=false": False, "answers success=true": True}
    if given["servers"] not in says:
        raise NotCovered(f"no answer for {given['servers']}")
    accepted = says[given["servers"]]
    for command in asked:
        world.answer(command, accepted=accepted, reason=None if accepted is not False else "nothing_to_move")
    noted = world.controller.state.fleet.models["m"].migration.tally.commands
    outcomes = [what.split(":")[1] for what, count in noted.items() for _ in range(count) if ":planned" not in what]
    unanswered = "unanswered" in outcomes
    return {"results": len(outcomes), "error": "unanswered" if unanswered else None, "success": accepted}


ANSWERS: dict[str, Answer] = {
    "llumnix.metric": metric,
    "llumnix.metric_order": metric_order,
    "llumnix.filter_single": filter_single,
    "llumnix.filter_chain": filter_chain,
    "llumnix.filter_global": filter_global,
    "llumnix.filter_flow": filter_flow,
    "llumnix.selector": selector,
    "llumnix.policy_registry": policy_registry,
    "llumnix.loop": loop,
    "llumnix.execute": execute,
}
