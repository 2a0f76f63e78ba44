"""Answers of the budget over all models to the cases of Dynamo's global planner."""

from typing import Any

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from tests.support.multi_model_world import MultiModelWorld
from tests.vectors.answering import Answer, only

REPLICAS_MAX = 1_000
SETTLED_MS = 30_000
"""Time until the worker of the giving model has drained and the other model has its workers."""


def mediate(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer the requests in order. A planner makes each request once; earlier wishes were requested before."""
    only(given, "pools", "requests", "max_gpus", "min_gpus", "cache")
    pools = {
        model: [(PoolKnobs(role, role, width, 1, REPLICAS_MAX), count) for role, (count, width) in roles.items()]
        for model, roles in given["pools"].items()
    }
    fleet = FleetKnobs(gpu_budget_max=given.get("max_gpus"), gpu_budget_min=given.get("min_gpus", 0))
    models = MultiModelWorld(pools, fleet)
    for model, replicas in given.get("cache", {}).items():
        _ask(models, model, replicas)
    return [_answer(models, given, model, replicas) for _, model, replicas in given["requests"]]


def _ask(models: MultiModelWorld, model: str, replicas: dict[str, int]) -> None:
    models.propose(model, **replicas)
    models.run(SETTLED_MS)
    models.propose(model)


def _answer(models: MultiModelWorld, given: dict[str, Any], model: str, replicas: dict[str, int]) -> dict[str, Any]:
    before = models.effective_targets()
    _ask(models, model, replicas)
    after = models.effective_targets()
    return {
        "approved": all(after[model][role] == count for role, count in replicas.items()),
        "partners": [
            [name, role, count]
            for name, roles in after.items()
            for role, count in roles.items()
            if name != model and count != before[name][role]
        ],
        "total": sum(
            count * given["pools"][name][role][1] for name, roles in after.items() for role, count in roles.items()
        ),
    }


ANSWERS: dict[str, Answer] = {"v3.mediate": mediate}
