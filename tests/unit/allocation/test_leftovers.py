"""Distribution of leftovers: several rounds at once equal single steps."""

import random

import pytest

from loadline.core.planning.allocation import greedy, leftovers, weighted
from loadline.core.planning.allocation.contenders import RemainingSupply
from loadline.core.vocabulary.allocations import (
    Allocation,
    AllocationProblem,
    ModelRequest,
    PoolOption,
    RoleRequest,
    SaturationPolicy,
)
from loadline.core.vocabulary.scalars import WORKERS_MAX, Role

GPUS = WORKERS_MAX - 4
ROLES: tuple[Role, ...] = ("prefill", "decode", "aggregated", "encode")
POLICIES: list[SaturationPolicy] = ["priority_exhaustive", "priority_round_robin", "round_robin", "weighted"]


def random_problem(seed: int) -> AllocationProblem:
    """Draw up to five requests of one role with up to three pools, on three short types."""
    draw = random.Random(seed)
    wants = []
    for number in range(draw.randint(1, 5)):
        options = tuple(
            PoolOption(
                f"{number}-{pool}",
                draw.choice([0.1, 0.3, 1.0, 2.5]),
                draw.choice([1.0, 2.0]),
                {f"type-{draw.randrange(3)}": draw.choice([1, 2, 8])},
                draw.choice([0, 0, 2]),
                draw.choice([5, 60, 200]),
                draw.randrange(9),
            )
            for pool in range(draw.randint(1, 3))
        )
        part = RoleRequest("aggregated", draw.uniform(0.0, 90.0), options)
        wants.append(ModelRequest(f"m{number}", draw.choice([1, 1, 2]), (part,)))
    limits = {f"type-{number}": draw.randrange(90) for number in range(3)}
    return AllocationProblem(tuple(wants), limits, draw.choice(POLICIES), draw.random() < 0.5)


def test_rounds_at_once_equal_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [random_problem(seed) for seed in range(300)]
    at_once = [greedy(problem) for problem in problems]
    for module in (leftovers, weighted):
        monkeypatch.setattr(module, "take_rounds", lambda _turns, _supply: False)
    assert [greedy(problem) for problem in problems] == at_once


def scarce_allocation(policy: SaturationPolicy, monkeypatch: pytest.MonkeyPatch, roles: int) -> Allocation:
    """Return three models that each demand the maximum, which exceeds the supply."""
    looks = 0
    fits = RemainingSupply.fits

    def count_fit(supply: RemainingSupply, takes: dict[str, int]) -> bool:
        nonlocal looks
        looks += 1
        return fits(supply, takes)

    monkeypatch.setattr(RemainingSupply, "fits", count_fit)
    wants = tuple(
        ModelRequest(
            name,
            1,
            tuple(
                RoleRequest(role, float(WORKERS_MAX), (PoolOption(f"{name}-{role}", 1.0, 1.0, {"h100": 1}),))
                for role in ROLES[:roles]
            ),
        )
        for name in ("a", "b", "c")
    )
    found = greedy(AllocationProblem(wants, {"h100": GPUS}, policy))
    assert looks < 10_000
    return found


@pytest.mark.parametrize("roles", [1, 2, 3, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_million_workers_are_granted_in_few_steps(
    policy: SaturationPolicy, roles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = scarce_allocation(policy, monkeypatch, roles).counts
    gpus = [sum(pools.values()) for pools in counts.values()]
    assert sum(gpus) == GPUS
    if policy == "priority_exhaustive":
        assert gpus == [GPUS, 0, 0]
    else:
        assert max(gpus) - min(gpus) <= 2
    if roles > 1:
        for pools in counts.values():
            assert max(pools.values()) - min(pools.values()) <= GPUS / 64
