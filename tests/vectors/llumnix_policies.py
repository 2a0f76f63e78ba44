"""Answers of migration planning to Llumnix's cases of whole policy cycles."""

import math
from typing import Any

from loadline.core.vocabulary.events import PauseChanged
from loadline.core.vocabulary.migrations import Migration
from tests.support.migration_world import MigrationWorld
from tests.vectors import llumnix_expected as expected
from tests.vectors.answering import Answer
from tests.vectors.llumnix_world import groups, view_of, world_of


def policy_cycle(case: dict[str, Any]) -> dict[str, Any]:
    """Run all policies once; return the migrations, their selection of requests, and the predicted times per token."""
    given, shared = case["given"], case["shared"]
    answers = [_cycle(given | {"instances": order}, shared) for order in _orders(given["instances"])]
    first = answers[0]
    if any(other != first for other in answers):
        first["pairs"] = first["pairs_unordered"] = "these depend on the order of registration"
    return first


def _orders(instances: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    half = len(instances) // 2
    return [instances, instances[::-1], [*instances[half:], *instances[:half]]]


def _cycle(given: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    world = world_of(given, shared)
    commands = world.handle(PauseChanged("m", paused=False))
    pairs = [{"src": m.source.worker, "dst": m.destination.worker, "policy": m.trigger} for m in commands]
    asked = {(command.rule, command.order, command.value) for command in commands}
    return {
        "pairs": pairs,
        "pairs_unordered": sorted(pairs, key=lambda pair: sorted(pair.items())),
        "request_selection": [list(one) for one in sorted(asked)],
        "predicted_tpot": _predicted(world),
        **_evacuation(given, commands),
    }


def _predicted(world: MigrationWorld) -> dict[str, float]:
    found: dict[str, float] = {}
    for group in groups(world):
        times = view_of(world, group).metric("predicted_tpot")
        found |= {key[1]: float(time) for key, time in zip(group.table.keys, times, strict=True)}
    return {name: time for name, time in found.items() if not math.isnan(time)}


def _evacuation(given: dict[str, Any], commands: list[Migration]) -> dict[str, Any]:
    """Return the sources and destinations of failover, and its violations."""
    asked = [command for command in commands if command.trigger.endswith("_failover")]
    taken = [(command.source.worker, command.destination.worker, command.requests_max) for command in asked]
    return {
        "rules": sorted({f"{command.rule} {command.order}" for command in asked}),
        "sources": sorted({source for source, _, _ in taken}),
        "destinations": sorted({destination for _, destination, _ in taken}),
        "wrong": expected.violations(given, taken),
    }


ANSWERS: dict[str, Answer] = {"llumnix.policy_cycle": policy_cycle}
