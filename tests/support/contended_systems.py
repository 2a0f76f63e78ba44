"""Small allocation problems with too few GPUs, and their optimum by exhaustive search.

``python -m tests.support.contended_systems 300`` prints how often greedy and the exact solver are worse than
the optimum. With ``--one-type`` a model has one type of GPU, as with llm-d's Workload Variant Autoscaler.
"""

import random
import sys
from collections.abc import Callable, Iterator
from itertools import product
from math import ceil

from loadline.core.planning.allocation import greedy
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem, ModelRequest, PoolOption, RoleRequest
from loadline.solver import solve

Rank = tuple[tuple[int, ...], float]
"""Numbers of unserved models by priority, and the cost of the served ones: lower is better."""


def system(seed: int) -> AllocationProblem:
    """Return three or four models of two or three pools, each on its own GPU type with limited supply."""
    draw = random.Random(seed)
    types = [f"type-{number}" for number in range(draw.choice([2, 3]))]
    requests, demanded_gpus = [], 0.0
    for model in range(draw.choice([3, 4])):
        demand, options = draw.uniform(1.0, 6.0), []
        for name in types:
            serves, gpus = draw.uniform(0.8, 3.0), draw.choice([1, 2, 3])
            cost, current = serves * draw.uniform(0.7, 1.5), draw.choice([0, 0, 1, 2])
            options.append(PoolOption(f"{model}-{name}", serves, cost, {name: gpus}, replicas_max=50, current=current))
            demanded_gpus += demand / serves * gpus / len(types)
        role = RoleRequest("aggregated", demand, tuple(options))
        requests.append(ModelRequest(f"model-{model}", draw.choice([1, 1, 2]), (role,)))
    limits = {name: 1 + int(draw.uniform(0.26, 1.3) * demanded_gpus / len(types)) for name in types}
    return AllocationProblem(tuple(requests), limits)


def single_type_system(seed: int) -> AllocationProblem:
    """Return six models of one priority, each served entirely by one of three GPU types with limited supply."""
    draw = random.Random(seed)
    prices = {f"type-{number}": draw.uniform(1.0, 3.0) for number in range(3)}
    requests, demanded_gpus = [], 0
    for model in range(6):
        gpus = {name: draw.randint(1, 8) for name in prices}
        pools = [
            PoolOption(f"{model}-{name}", 1.0, each * prices[name], {name: each}, replicas_max=1)
            for name, each in gpus.items()
        ]
        requests.append(ModelRequest(f"model-{model}", 1, (RoleRequest("aggregated", 1.0, tuple(pools)),)))
        demanded_gpus += sum(gpus.values())
    limits = {name: int(draw.uniform(0.1, 0.9) * demanded_gpus / len(prices)) for name in prices}
    return AllocationProblem(tuple(requests), limits, switching_cost_hours=0.0)


def optimum(problem: AllocationProblem) -> Rank:
    """Return the best rank, by trying all counts of each model with the GPUs that the others leave."""
    names = sorted(problem.limits)
    states: dict[tuple[int, ...], Rank] = {tuple(problem.limits[name] for name in names): (_all(problem), 0.0)}
    for request in problem.models:
        choices = list(_choices(problem, request, names))
        found = dict(states)
        for left, (unserved, cost) in states.items():
            fewer = _less_one(problem, unserved, request.priority)
            for more, used in choices:
                rest = tuple(one - other for one, other in zip(left, used, strict=True))
                if min(rest) >= 0:
                    found[rest] = min(found.get(rest, (fewer, cost + more)), (fewer, cost + more))
        states = found
    return min(states.values())


def rank(problem: AllocationProblem, allocation: Allocation) -> Rank:
    """Return the rank of an allocation, which must respect the limits."""
    unserved, cost = _all(problem), 0.0
    left = dict(problem.limits)
    for request in problem.models:
        counts = allocation.counts[request.name]
        for option in request.roles[0].options:
            for name, units in option.supplies.items():
                left[name] -= units * counts[option.pool]
        if request.name not in allocation.unserved:
            assert (
                sum(one.capacity * counts[one.pool] for one in request.roles[0].options)
                >= request.roles[0].demand * 0.999999
            )
            unserved = _less_one(problem, unserved, request.priority)
            cost += sum(_cost(problem, option, counts[option.pool]) for option in request.roles[0].options)
    assert min(left.values()) >= 0, left
    return unserved, cost


def _all(problem: AllocationProblem) -> tuple[int, ...]:
    priorities = sorted({request.priority for request in problem.models})
    return tuple(sum(request.priority == priority for request in problem.models) for priority in priorities)


def _less_one(problem: AllocationProblem, unserved: tuple[int, ...], priority: int) -> tuple[int, ...]:
    place = sorted({request.priority for request in problem.models}).index(priority)
    return tuple(count - (number == place) for number, count in enumerate(unserved))


def _cost(problem: AllocationProblem, option: PoolOption, count: int) -> float:
    return option.cost_per_hour * (count + problem.switching_cost_hours * abs(count - option.current))


def _choices(
    problem: AllocationProblem, request: ModelRequest, names: list[str]
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield cost and GPUs of the Pareto-optimal counts that serve the request."""
    role = request.roles[0]
    counts = product(*(range(1 + max(option.current, ceil(role.demand / option.capacity))) for option in role.options))
    choices = sorted(
        (
            sum(_cost(problem, option, count) for option, count in zip(role.options, one, strict=True)),
            tuple(
                sum(count * option.supplies.get(name, 0) for option, count in zip(role.options, one, strict=True))
                for name in names
            ),
        )
        for one in counts
        if sum(option.capacity * count for option, count in zip(role.options, one, strict=True)) >= role.demand
    )
    pareto: list[tuple[float, tuple[int, ...]]] = []
    for cost, used in choices:
        if not any(all(a <= b for a, b in zip(other, used, strict=True)) for _, other in pareto):
            pareto.append((cost, used))
    yield from pareto


def is_contended(problem: AllocationProblem, ideal: Rank) -> bool:
    """Return whether the optimum is worse than with unlimited GPUs."""
    plenty = AllocationProblem(problem.models, dict.fromkeys(problem.limits, 1_000_000))
    unserved, cost = rank(plenty, greedy(plenty))
    return ideal[0] > unserved or ideal[1] > cost * 1.000001


def main(systems: int, one: Callable[[int], AllocationProblem] = system) -> None:
    solvers: dict[str, Callable[[AllocationProblem], Allocation | None]] = {
        "greedy": greedy,
        "exact": lambda problem: solve(problem, 60.0),
    }
    worse: dict[str, list[float]] = {name: [] for name in solvers}
    fewer = dict.fromkeys(solvers, 0)
    number = 0
    for seed in range(systems):
        problem = one(seed)
        ideal = optimum(problem)
        if not is_contended(problem, ideal):
            continue
        number += 1
        for name, solver in solvers.items():
            found = solver(problem)
            assert found is not None
            unserved, cost = rank(problem, found)
            if unserved > ideal[0]:
                fewer[name] += 1
            elif cost > ideal[1] * 1.000001:
                worse[name].append(cost / ideal[1] - 1.0)
    sys.stdout.write(f"{number} of {systems} systems are contended\n")
    for name, excess in worse.items():
        mean, most = (100.0 * sum(excess) / len(excess), 100.0 * max(excess)) if excess else (0.0, 0.0)
        shares = 100.0 * fewer[name] / number, 100.0 * len(excess) / number
        sys.stdout.write(
            f"{name}: serves fewer in {fewer[name]} ({shares[0]:.1f} %), and for more in {len(excess)} "
            f"({shares[1]:.1f} %), {mean:.2f} % on average and {most:.2f} % at most\n"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), single_type_system if "--one-type" in sys.argv else system)
