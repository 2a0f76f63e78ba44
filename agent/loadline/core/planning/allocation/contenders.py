"""Contenders: requests of models with their candidates, and the supplies that remain for them."""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.planning.allocation.covers import SLACK, cover
from loadline.core.vocabulary.allocations import AllocationProblem, ModelRequest, PoolOption, RoleRequest

_CANDIDATES_MAX: Final = 64
"""Maximum candidates of a request; the cheapest are used. Seven for each of two roles are 49."""


class Bundle(Struct, frozen=True):
    """Counts of pools that serve a request together."""

    counts: dict[str, int]
    """Workers by pool."""
    takes: dict[str, int]
    """GPUs of limited supplies, beyond those of the minimum counts."""
    value: float
    """Cost per hour plus the cost of switching; lower is better."""
    changes: int = 0
    """Workers that start or stop."""


class RemainingSupply(Struct):
    """GPUs left of each limited supply; 0 if minimum replicas take more than exist."""

    left: dict[str, int]

    def fits(self, takes: Mapping[str, int]) -> bool:
        """Return True if these GPUs are left in each supply."""
        return all(units <= self.left[name] for name, units in takes.items())

    def take(self, takes: Mapping[str, int]) -> None:
        """Take GPUs from the supplies."""
        for name, units in takes.items():
            self.left[name] -= units

    def limited(self, option: PoolOption) -> dict[str, int]:
        """Return the GPUs of limited supplies that one worker takes."""
        return {name: units for name, units in option.supplies.items() if units and name in self.left}

    def bounded(self, option: PoolOption) -> PoolOption:
        """Return the option with its maximum limited to what the supplies allow."""
        additional = min(
            (self.left[name] // units for name, units in self.limited(option).items()), default=option.replicas_max
        )
        return replace(option, replicas_max=min(option.replicas_max, option.replicas_min + additional))


class Contender(Struct, frozen=True):
    """A request with at least one candidate, best first."""

    request: ModelRequest
    candidates: tuple[Bundle, ...]
    switching_cost_hours: float | None = None
    """Cost of switching a worker, in hours of its cost, for a new mix if no candidate fits; None: no new mix."""

    @property
    def options(self) -> Iterator[PoolOption]:
        """Options of all roles."""
        return (option for part in self.request.roles for option in part.options)

    def minimums(self) -> dict[str, int]:
        """Return the minimum replicas by pool."""
        return {option.pool: option.replicas_min for option in self.options}

    def mixed(self, supply: RemainingSupply) -> Bundle | None:
        """Return the cheapest mix that the remaining supplies allow; None if there is none."""
        if self.switching_cost_hours is None:
            return None
        parts = tuple(
            RoleRequest(part.role, part.demand, tuple(supply.bounded(option) for option in part.options))
            for part in self.request.roles
        )
        if any(served(part, {option.pool: option.replicas_max for option in part.options}) < 1.0 for part in parts):
            return None
        request = ModelRequest(self.request.name, self.request.priority, parts)
        found = priced(request, supply, self.switching_cost_hours, {})
        return found if supply.fits(found.takes) else None


def supply_of(problem: AllocationProblem) -> RemainingSupply:
    """Return the supplies that minimum replicas leave."""
    left = dict(problem.limits)
    for option in (option for request in problem.models for part in request.roles for option in part.options):
        for name, units in option.supplies.items():
            if name in left:
                left[name] -= units * option.replicas_min
    return RemainingSupply({name: max(0, units) for name, units in left.items()})


def contenders_of(problem: AllocationProblem, supply: RemainingSupply) -> list[Contender]:
    """Return all requests with their candidates, ordered by name."""
    hours = problem.switching_cost_hours
    requests = [_ordered(request) for request in sorted(problem.models, key=lambda request: request.name)]
    return [Contender(request, _candidates(request, supply, hours), hours) for request in requests]


def priced(request: ModelRequest, supply: RemainingSupply, hours: float, prices: Mapping[str, float]) -> Bundle:
    """Return the cheapest bundle at the given prices of supplies; its value excludes those prices."""
    found = Bundle({}, {}, 0.0)
    for part in request.roles:
        counts = cover(part, hours, prices) or _maximums(part)
        found = both(found, *bundles_of(part, [counts], supply, hours))
    return found


def served(part: RoleRequest, counts: Mapping[str, int]) -> float:
    """Return the fraction of the demand of a role that workers serve."""
    if not part.demand:
        return 1.0
    share = sum(option.capacity * counts.get(option.pool, 0) for option in part.options) / part.demand
    return 1.0 if share >= 1.0 - 2.0 * SLACK else share


def _ordered(request: ModelRequest) -> ModelRequest:
    """Order pools by name, so that sums round identically."""
    if len(request.roles) == 1 and len(request.roles[0].options) == 1:
        return request  # as most are; a copy is checked anew, a seventh of the time of an allocation
    parts = (replace(part, options=tuple(sorted(part.options, key=_pool))) for part in request.roles)
    return replace(
        request, roles=tuple(sorted(parts, key=lambda part: (part.role, [_pool(one) for one in part.options])))
    )


def _pool(option: PoolOption) -> str:
    return option.pool


def _candidates(request: ModelRequest, supply: RemainingSupply, hours: float) -> tuple[Bundle, ...]:
    """Return combinations of the cheapest mix or a single pool of each role, cheapest first; ties as in ``cover``."""
    found = [Bundle({}, {}, 0.0)]
    for part in request.roles:
        bundles = bundles_of(part, _bundles(part, hours), supply, hours)
        found = [both(one, other) for one in found for other in bundles] if len(request.roles) > 1 else bundles
        found = sorted(found, key=_order)[:_CANDIDATES_MAX]
    return tuple(found)


def bundles_of(
    part: RoleRequest, counts: Iterable[dict[str, int]], supply: RemainingSupply, hours: float
) -> list[Bundle]:
    """Return the bundle for each of some counts of a role; switching a worker costs ``hours`` of its cost."""
    options = [(option, supply.limited(option)) for option in part.options]
    bundles: list[Bundle] = []
    for one in counts:
        takes: dict[str, int] = {}
        value, changes = 0.0, 0
        for option, units in options:
            count = one[option.pool]
            change = abs(count - option.current)
            value += option.cost_per_hour * (count + hours * change)
            changes += change
            for name, each in units.items():
                takes[name] = takes.get(name, 0) + each * (count - option.replicas_min)
        bundles.append(Bundle(one, takes, value, changes))
    return bundles


def both(one: Bundle, other: Bundle) -> Bundle:
    """Add the bundles of two roles."""
    takes = dict(one.takes)
    for name, units in other.takes.items():  # called 36 times for two roles of five pools
        takes[name] = takes.get(name, 0) + units
    return Bundle(one.counts | other.counts, takes, one.value + other.value, one.changes + other.changes)


def _order(candidate: Bundle) -> tuple[float, int, list[int]]:
    return candidate.value, candidate.changes, [-count for _, count in sorted(candidate.counts.items())]


def _bundles(part: RoleRequest, hours: float) -> Iterable[dict[str, int]]:
    """Return the cheapest mix, and each pool with the minimum counts of the others."""
    mixed = cover(part, hours)
    if mixed is None:
        return [_maximums(part)]
    bundles = [mixed]
    minimum = sum(option.capacity * option.replicas_min for option in part.options)
    for option in part.options:
        missing = part.demand * (1.0 - SLACK) - (minimum - option.capacity * option.replicas_min)
        count = max(option.replicas_min, ceil(missing / option.capacity))
        alone = {other.pool: other.replicas_min for other in part.options} | {option.pool: count}
        if count <= option.replicas_max and alone not in bundles:
            bundles.append(alone)
    return bundles


def _maximums(part: RoleRequest) -> dict[str, int]:
    return {option.pool: option.replicas_max for option in part.options}
