"""Answers of the rescheduler to the cases of Llumnix on parts of it: metrics, filters, selectors, loop, commands."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np

from loadline.core.migration.columns import Mask
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
"""Where most are silent at once nobody fails: so some are not."""
SAYS: Final[dict[str, Callable[[float], dict[str, Any]]]] = {
    "base": lambda value: {"kv_blocks_used": round(1_000 * value)},
    KV: lambda value: {"kv_blocks_used": round(1_000 * value)},
    "decode_batch_size": lambda value: {"decode_batch_requests": value},
    "num_waiting_requests": lambda value: {"waiting_requests": value},
    "num_requests": lambda value: {"running_requests": value},
    "all_prefills_tokens_num": lambda value: {"queued_prefill_tokens": value},
    "all_decodes_tokens_num": lambda value: {"decode_tokens": value},
}
"""What a worker says whose metric has a value."""


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
    """Who comes first, whatever the two are called: of equals that depends on their names."""
    given, name = case["given"], _metric_name(case["given"])
    only(given, "metric", "a", "b")
    first, second = _comes_first(name, given["a"], given["b"]), not _comes_first(name, given["b"], given["a"])
    return {"a_less_b": first and second, "b_less_a": not first and not second, "equal": first is not second}


def _comes_first(name: MetricName, value: float, other: float) -> bool:
    """Whether the worker ``a`` of that value comes before the worker ``b`` of another."""
    world = MigrationWorld()
    world.join("a", 0, **SAYS[name](value))
    world.join("b", 0, **SAYS[name](other))
    view = _view(world)
    order = view.ordered(np.ones(2, dtype=np.bool_), name, 2, descending=False)
    return bool(view.table.keys[order[0]][1] == "a")


def _view(world: MigrationWorld) -> LoadView:
    (group,) = (group for group in groups(world) if len(group.table))
    return view_of(world, group)


# -- filters -----------------------------------------------------------------------------------------------------------


class Looked:
    """Who of some instances fails by itself, who with them, and who may take work in."""

    def __init__(self, given: dict[str, Any], instances: list[dict[str, Any]], domain: str = "instance") -> None:
        config = {key: given[key] for key in ("staleness_seconds",) if key in given} | {"failover_domain": domain}
        world = world_of({"config": config, "instances": [*instances, *BYSTANDERS]}, {})
        (knobs,) = world.settings.models
        boards = {group.name: group.table for group in groups(world)}
        found = detect_failures(boards, knobs.migration, (), world.controller.state.bus_since_ms, world.now)
        self.world, self._asked = world, [one["id"] for one in instances]
        self.own, self.struck, self.serving, self.of_role = set(), set(), set(), {}
        for group in groups(world):
            own = found.failed[group.name]
            struck = found.domains.affected(group.table, own)
            view = view_of(world, group, struck)
            self.own |= self._of(names(group, own))
            self.struck |= self._of(names(group, struck))
            self.serving |= self._of(names(group, healthy(view)))
            self.of_role[group.table.role] = self._of(names(group, np.ones(len(group.table), dtype=np.bool_)))

    def _of(self, found: list[str]) -> set[str]:
        return set(found) & set(self._asked)

    def without(self, kept: set[str]) -> list[str]:
        """Those that were asked about and are not among these, in their order."""
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
    looked, name = Looked(given, [given["instance"]]), given["instance"]["id"]
    if kind == "infer_type":
        return {"filtered_out": name not in looked.of_role[ROLES[given["infer_type"]]]}
    return {"filtered_out": name not in looked.serving, "marks_needs_failover": name in looked.own}


def _is_reserved(given: dict[str, Any]) -> bool:
    only(given, "filter", "key", "rejected", "instance")
    if given["key"] != "reserved":
        raise NotCovered("what a worker is kept for is the only attribute that is filtered by")
    looked = Looked({}, [given["instance"]])
    (group,) = (group for group in groups(looked.world) if len(group.table))
    refused = [given["rejected"]] if given["rejected"] else []
    passes = unreserved(*refused)(view_of(looked.world, group))
    return given["instance"]["id"] not in names(group, passes)


def _passes_metric(given: dict[str, Any]) -> bool:
    only(given, "filter", "metric", "threshold", "value")
    name, threshold = _metric_name(given), given["threshold"]
    world = MigrationWorld()
    world.join("i", 0, **SAYS[name](given["value"]))
    build = below if given["filter"] == "metric_below" else at_least
    return bool(build(lambda _: name, lambda _: threshold)(_view(world)).all())


def filter_chain(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    only(given, "filters", "staleness_seconds", "instances")
    looked = Looked(given, given["instances"])
    kept = {one["id"] for one in given["instances"]}
    for one in given["filters"]:
        kind, _, value = one.partition("=")
        if kind == "infer_type":
            kept &= looked.of_role[ROLES[value]]
        elif kind in {"schedulability", "staleness"}:
            kept &= looked.serving
        else:
            raise NotCovered(f"no filter {one}")
    return {"filtered_out": looked.without(kept)}


def filter_global(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    only(given, "filter", "domain", "instances", "staleness_seconds")
    looked = Looked(given, given["instances"], given["domain"])
    if given["filter"] == "failover":
        return {"filtered_out": sorted(looked.struck)}
    return {"filtered_out": looked.without(looked.struck)}


def filter_flow(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    only(given, "single", "global", "instances", "staleness_seconds")
    (one,) = given["global"]
    kind, _, domain = one.partition(":")
    if kind != "failover" or not {"schedulability", "staleness"}.issuperset(given["single"]):
        raise NotCovered("no answer for these filters")
    looked = Looked(given, given["instances"], domain)
    return {"remaining": sorted(looked.serving), "needs_failover": sorted(looked.own)}


# -- selectors and policies --------------------------------------------------------------------------------------------


def selector(case: dict[str, Any]) -> dict[str, Any]:
    """Sources with destinations, wherever the amounts would allow it."""
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
    """How often all workers are looked at in a time, and whether that is within the bounds."""
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
    """How long whoever answers waits for the others, in virtual time."""
    only(given, "pairs", "agents", "timeout_s")
    world, silent = _failing(given["pairs"]), 1 if "never answers" in given["agents"] else 0
    asked = _all_at_once(world)
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
    """So many workers that must give away one request, and as many that take it; nothing was asked yet."""
    world = MigrationWorld()
    world.handle(PauseChanged("m", paused=True))
    for number in range(count):
        world.join(f"ill{number:03}", 10, 1, schedulable=False)
        world.join(f"sound{number:03}", 0, 0)
    return world


def _all_at_once(world: MigrationWorld) -> list[Migration]:
    """What is asked for when it is no more paused."""
    return world.handle(PauseChanged("m", paused=False))


def _outcome(given: dict[str, Any]) -> dict[str, Any]:
    """What is noted of a command."""
    only(given, "pairs", "servers")
    world = _failing(given["pairs"])
    asked = _all_at_once(world)
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
