"""CPU time to allocate GPUs of five types to 100 models, each of which can run on any type.

The value is the exact solver with one fifth of the GPUs of each type that the models would need if they used only that
type; the baseline is the plain formulation with an integer number of workers per pool. Also measured: 3, 0.6 and 0.3
times that supply; greedy, and greedy again with cached covers; the models that both serve; greedy with two roles and
by weight; and one cover. Run it from the root of the repository:

  python -m tools.bench.allocation [--quick]
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from scipy.optimize import Bounds, LinearConstraint, milp

from loadline.core.planning.allocation import cover, greedy
from loadline.core.planning.allocation.covers import cached_counts
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem, ModelRequest, PoolOption, RoleRequest
from loadline.core.vocabulary.scalars import Role
from loadline.solver import solve
from tools.bench.harness import options, progress, result

T = TypeVar("T")
MODELS, TYPES = 100, 5
PLENTY, ABOUT, SHORT, SCARCE = 3.0, 1.0, 0.6, 0.3
TIME_LIMIT_S = 10.0
WORKERS_MAX = 200


def fleet(supply: float, seed: int) -> AllocationProblem:
    """Build demands of 2 to 50 workers in three priorities, and ``supply`` times the GPUs that they need on average."""
    draw = random.Random(seed)  # noqa: S311 - reproducible
    models, taken = [], 0.0
    for model in range(MODELS):
        demand, pools = draw.uniform(5.0, 100.0), []
        for number in range(TYPES):
            serves, gpus = draw.uniform(0.5, 2.5) * (number + 1), draw.choice([1, 2, 4, 8])
            cost = serves * draw.uniform(0.8, 1.3)
            takes = {f"type-{number}": gpus}
            pools.append(PoolOption(f"{model}-{number}", serves, cost, takes, 0, WORKERS_MAX, draw.randint(0, 3)))
            taken += demand / serves * gpus / TYPES
        models.append(
            ModelRequest(
                f"model-{model:03}", draw.choice([1, 2, 3]), (RoleRequest("aggregated", demand, tuple(pools)),)
            )
        )
    return AllocationProblem(tuple(models), {f"type-{number}": int(supply * taken / TYPES) for number in range(TYPES)})


def two_roles(problem: AllocationProblem) -> AllocationProblem:
    """Split each demand in half for prefill and decode, each with its own pools."""
    roles: tuple[Role, ...] = ("prefill", "decode")
    models = [
        replace(
            model,
            roles=tuple(
                RoleRequest(
                    role,
                    model.roles[0].demand / len(roles),
                    tuple(replace(option, pool=f"{role}-{option.pool}") for option in model.roles[0].options),
                )
                for role in roles
            ),
        )
        for model in problem.models
    ]
    return replace(problem, models=tuple(models))


def plain(problem: AllocationProblem) -> None:
    """Solve for all counts at once: workers kept, workers started, and whether each model is served."""
    pools = [(at, option) for at, model in enumerate(problem.models) for option in model.roles[0].options]
    number, models = len(pools), len(problem.models)
    rows = np.zeros((models + TYPES, 2 * number + models))
    for at, (model, option) in enumerate(pools):
        for column in (at, number + at):
            rows[model, column] = option.capacity / problem.models[model].roles[0].demand
            for name, units in option.supplies.items():
                rows[models + list(problem.limits).index(name), column] = units
    rows[:models, 2 * number :] = -np.eye(models)
    costs, hours = np.array([option.cost_per_hour for _, option in pools]), problem.switching_cost_hours
    served = [-1e6 / 100 ** (model.priority - 1) for model in problem.models]
    current = [option.current for _, option in pools]
    low = np.concatenate([np.zeros(models), np.full(TYPES, -np.inf)])
    high = np.concatenate([np.full(models, np.inf), list(problem.limits.values())])
    milp(
        np.concatenate([costs * (1.0 - hours), costs * (1.0 + hours), served]),
        integrality=np.ones(rows.shape[1]),
        bounds=Bounds(0.0, np.concatenate([current, np.full(number, WORKERS_MAX), np.ones(models)])),
        constraints=LinearConstraint(rows, low, high),
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": 1e-3},
    )


def timed(what: Callable[[], T]) -> tuple[T, float]:
    """Call a function; return its result and its CPU time in ms, which does not depend on other processes."""
    began_s = time.process_time()
    found = what()
    return found, (time.process_time() - began_s) * 1e3


def served(problem: AllocationProblem, found: Allocation) -> list[int]:
    """Count the served models by priority."""
    models = [model for model in problem.models if model.name not in found.unserved]
    return [sum(model.priority == priority for model in models) for priority in (1, 2, 3)]


def covers_us(pools: int, times: int) -> float:
    """Return the mean time of a cover of 50 to 100 workers, in us."""
    draw = random.Random(pools)  # noqa: S311 - the same parts every time
    requests = [
        RoleRequest(
            "aggregated",
            draw.uniform(100.0, 200.0),
            tuple(PoolOption(str(number), draw.uniform(1.0, 3.0), draw.uniform(1.0, 3.0)) for number in range(pools)),
        )
        for _ in range(times)
    ]
    return timed(lambda: [cover(request, 0.1) for request in requests])[1] / times * 1e3


def main() -> None:
    """Run the benchmark and print its results."""
    seeds = range(1, 4 if options(__doc__) else 10)
    baselines: list[float] = []
    values: dict[str, list[float]] = {}
    models = {"greedy": [0, 0, 0], "exact": [0, 0, 0]}
    solve(fleet(SCARCE, 0), TIME_LIMIT_S)  # imports SciPy
    for seed in seeds:
        for supply in (PLENTY, ABOUT, SHORT, SCARCE):
            problem = fleet(supply, seed)
            solvers: dict[str, Callable[[], Allocation | None]] = {
                "exact": partial(solve, problem, TIME_LIMIT_S),
                "greedy": partial(greedy, problem),
                "again": partial(greedy, problem),
            }
            for name, solver in solvers.items():
                if name != "again":
                    cached_counts.cache_clear()
                found, ms = timed(solver)
                values.setdefault(f"{name}_{supply:g}_ms", []).append(ms)
                if supply == SHORT and name in models and found is not None:
                    models[name] = [one + more for one, more in zip(models[name], served(problem, found), strict=True)]
        short = fleet(SHORT, seed)
        others = {
            "roles": replace(two_roles(short), policy="priority_round_robin"),
            "weighted": replace(short, policy="weighted"),
            "roles_weighted": replace(two_roles(short), policy="weighted"),
        }
        for name, problem in others.items():
            cached_counts.cache_clear()
            values.setdefault(f"greedy_{name}_ms", []).append(timed(partial(greedy, problem))[1])
        baselines.append(timed(partial(plain, fleet(ABOUT, seed)))[1])
        progress(
            f"fleet {seed} of {len(seeds)}: {values[f'exact_{ABOUT:g}_ms'][-1]:.0f} ms, plain {baselines[-1]:.0f} ms"
        )
    more = {name: round(statistics.median(ms), 1) for name, ms in values.items()}
    shares = {f"{name}_served": [round(one / len(seeds), 1) for one in counts] for name, counts in models.items()}
    covers = {f"cover_{pools}_us": round(covers_us(pools, 200), 1) for pools in (1, 2, 5)}
    result("allocation", "ms", values[f"exact_{ABOUT:g}_ms"], baselines, **more, **shares, **covers)


if __name__ == "__main__":
    main()
