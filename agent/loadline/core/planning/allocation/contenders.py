"""What would serve a want, best first; and what is left of the supplies."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import ceil
from typing import Final

from msgspec import Struct

from loadline.core.allocations import Option, Part, Problem, Want
from loadline.core.planning.allocation.covers import SLACK, cover

_CANDIDATES_MAX: Final = 64
"""Of a want, the cheapest: seven for each of two roles are 49."""


class Candidate(Struct, frozen=True):
    """Workers that would serve a want."""

    counts: dict[str, int]
    """By pool, those above 0."""
    takes: dict[str, int]
    """Of limited supplies, beyond what the least counts take."""
    value: float
    """Less is better: what it costs an hour, and what changing to it costs."""


class Contender(Struct, frozen=True):
    """A want and its candidates, best first."""

    want: Want
    candidates: tuple[Candidate, ...]

    @property
    def options(self) -> Iterator[Option]:
        """All pools of it."""
        return (option for part in self.want.parts for option in part.options)

    def least(self) -> dict[str, int]:
        """The counts that it has in any case."""
        return {option.pool: option.least for option in self.options}


class Supply(Struct):
    """What is left of each limited supply; where least counts take more than there is, 0."""

    left: dict[str, int]

    def fits(self, takes: Mapping[str, int]) -> bool:
        """Whether there is so much left of each."""
        return all(units <= self.left[name] for name, units in takes.items())

    def take(self, takes: Mapping[str, int]) -> None:
        """Have that much less of each."""
        for name, units in takes.items():
            self.left[name] -= units

    def limited(self, option: Option) -> dict[str, int]:
        """What a worker takes of supplies that are limited."""
        return {name: units for name, units in option.takes.items() if units and name in self.left}


def supply_of(problem: Problem) -> Supply:
    """What the least counts leave of the limits."""
    left = dict(problem.limits)
    for option in (option for want in problem.wants for part in want.parts for option in part.options):
        for name, units in option.takes.items():
            if name in left:
                left[name] -= units * option.least
    return Supply({name: max(0, units) for name, units in left.items()})


def contenders_of(problem: Problem, supply: Supply) -> list[Contender]:
    """All wants with their candidates, in the order of names."""
    wants = sorted(problem.wants, key=lambda want: want.name)
    return [Contender(want, _candidates(want, supply, problem.switching_cost_hours)) for want in wants]


def candidate(want: Want, counts: Mapping[str, int], supply: Supply, hours: float) -> Candidate:
    """What counts of the pools of a want take and cost; switching a worker costs ``hours`` of it."""
    takes: dict[str, int] = {}
    value = 0.0
    for option in (option for part in want.parts for option in part.options):
        count = counts[option.pool]
        value += option.cost * (count + hours * abs(count - option.current))
        for name, units in supply.limited(option).items():
            if count > option.least:
                takes[name] = takes.get(name, 0) + units * (count - option.least)
    return Candidate({pool: count for pool, count in sorted(counts.items()) if count}, takes, value)


def served(part: Part, counts: Mapping[str, int]) -> float:
    """Share (0..1) of the demand of a part that workers serve."""
    if not part.demand:
        return 1.0
    share = sum(option.serves * counts.get(option.pool, 0) for option in part.options) / part.demand
    return 1.0 if share >= 1.0 - 2.0 * SLACK else share


def _candidates(want: Want, supply: Supply, hours: float) -> tuple[Candidate, ...]:
    """The cheapest mix of each part or one pool alone, combined; the cheapest first, then as ``cover`` breaks ties."""
    found: list[dict[str, int]] = [{}]
    for part in want.parts:
        whole = [one | other for one, other in product(found, _bundles(part, hours))]
        found = _cheapest_first(whole, want, hours)[:_CANDIDATES_MAX]
    return tuple(candidate(want, counts, supply, hours) for counts in found)


def _cheapest_first(bundles: list[dict[str, int]], want: Want, hours: float) -> list[dict[str, int]]:
    if len(bundles) == 1:
        return bundles
    options = {option.pool: option for part in want.parts for option in part.options}

    def order(counts: dict[str, int]) -> tuple[float, int, tuple[int, ...]]:
        changes = [abs(count - options[pool].current) for pool, count in counts.items()]
        value = sum(
            options[pool].cost * (count + hours * change)
            for (pool, count), change in zip(counts.items(), changes, strict=True)
        )
        return value, sum(changes), tuple(-counts[pool] for pool in sorted(counts))

    return sorted(bundles, key=order)


def _bundles(part: Part, hours: float) -> Iterable[dict[str, int]]:
    """The cheapest mix, and each pool with the least counts of the others; or all there may be, if that is too few."""
    mixed = cover(part, hours)
    if mixed is None:
        return [{option.pool: option.most for option in part.options}]
    bundles = [mixed]
    given = sum(option.serves * option.least for option in part.options)
    for option in part.options:
        missing = part.demand * (1.0 - SLACK) - (given - option.serves * option.least)
        count = max(option.least, ceil(missing / option.serves))
        alone = {other.pool: other.least for other in part.options} | {option.pool: count}
        if count <= option.most and alone not in bundles:
            bundles.append(alone)
    return bundles
