"""Candidates that serve a model request, best first, and the supplies that remain."""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.planning.allocation.covers import SLACK, cover
from loadline.core.vocabulary.allocations import AllocationProblem, ModelRequest, PoolOption, RoleRequest

_CANDIDATES_MAX: Final = 64
"""Cheapest candidates kept of a request: seven for each of two roles are 49."""


class Bundle(Struct, frozen=True):
    """Workers that serve a request together."""

    counts: dict[str, int]
    """Workers by pool."""
    takes: dict[str, int]
    """GPUs of limited supplies, beyond those of the minimum counts."""
    value: float
    """Cost an hour plus the cost of switching to it; lower is better."""
    changes: int = 0
    """Workers that start or stop."""


class RemainingSupply(Struct):
    """GPUs left of each limited supply; 0 where minimum counts use more than exist."""

    left: dict[str, int]

    def fits(self, takes: Mapping[str, int]) -> bool:
        """Return True if so much is left of each supply."""
        return all(units <= self.left[name] for name, units in takes.items())

    def take(self, takes: Mapping[str, int]) -> None:
        """Take GPUs from the supplies."""
        for name, units in takes.items():
            self.left[name] -= units

    def limited(self, option: PoolOption) -> dict[str, int]:
        """Return the GPUs that one worker takes, of limited supplies."""
        return {name: units for name, units in option.supplies.items() if units and name in self.left}

    def bounded(self, option: PoolOption) -> PoolOption:
        """Return the option with no more workers than the supplies allow."""
        more = min(
            (self.left[name] // units for name, units in self.limited(option).items()), default=option.replicas_max
        )
        return replace(option, replicas_max=min(option.replicas_max, option.replicas_min + more))


class Contender(Struct, frozen=True):
    """A request and its candidates, best first; at least one."""

    want: ModelRequest
    candidates: tuple[Bundle, ...]
    hours: float | None = None
    """Cost of switching a worker, in hours of it, for a new mix when no candidate fits; None: no further mix."""

    @property
    def options(self) -> Iterator[PoolOption]:
        """Return the options of all roles."""
        return (option for part in self.want.roles for option in part.options)

    def least(self) -> dict[str, int]:
        """Return the minimum counts."""
        return {option.pool: option.replicas_min for option in self.options}

    def mixed(self, supply: RemainingSupply) -> Bundle | None:
        """Return the cheapest mix that the remaining supplies allow; None if there is none."""
        if self.hours is None:
            return None
        parts = tuple(
            RoleRequest(part.role, part.demand, tuple(supply.bounded(option) for option in part.options))
            for part in self.want.roles
        )
        if any(served(part, {option.pool: option.replicas_max for option in part.options}) < 1.0 for part in parts):
            return None
        found = priced(ModelRequest(self.want.name, self.want.priority, parts), supply, self.hours, {})
        return found if supply.fits(found.takes) else None


def supply_of(problem: AllocationProblem) -> RemainingSupply:
    """Return the supplies that remain beyond the minimum counts."""
    left = dict(problem.limits)
    for option in (option for want in problem.models for part in want.roles for option in part.options):
        for name, units in option.supplies.items():
            if name in left:
                left[name] -= units * option.replicas_min
    return RemainingSupply({name: max(0, units) for name, units in left.items()})


def contenders_of(problem: AllocationProblem, supply: RemainingSupply) -> list[Contender]:
    """Return all requests with their candidates, ordered by name."""
    hours = problem.switching_cost_hours
    wants = [_ordered(want) for want in sorted(problem.models, key=lambda want: want.name)]
    return [Contender(want, _candidates(want, supply, hours), hours) for want in wants]


def priced(want: ModelRequest, supply: RemainingSupply, hours: float, prices: Mapping[str, float]) -> Bundle:
    """Return the cheapest bundle at the given prices of supplies; its value excludes them."""
    found = Bundle({}, {}, 0.0)
    for part in want.roles:
        counts = cover(part, hours, prices) or _all_there_may_be(part)
        found = both(found, *bundles_of(part, [counts], supply, hours))
    return found


def served(part: RoleRequest, counts: Mapping[str, int]) -> float:
    """Return the share (0..1) of the demand of a role that workers serve."""
    if not part.demand:
        return 1.0
    share = sum(option.capacity * counts.get(option.pool, 0) for option in part.options) / part.demand
    return 1.0 if share >= 1.0 - 2.0 * SLACK else share


def _ordered(want: ModelRequest) -> ModelRequest:
    """Order pools by name, so that sums round identically."""
    parts = (replace(part, options=tuple(sorted(part.options, key=_pool))) for part in want.roles)
    return replace(want, roles=tuple(sorted(parts, key=lambda part: (part.role, [_pool(one) for one in part.options]))))


def _pool(option: PoolOption) -> str:
    return option.pool


def _candidates(want: ModelRequest, supply: RemainingSupply, hours: float) -> tuple[Bundle, ...]:
    """Combine the cheapest mix or a single pool of each role; cheapest first, then as ``cover`` breaks ties."""
    found = [Bundle({}, {}, 0.0)]
    for part in want.roles:
        bundles = bundles_of(part, _bundles(part, hours), supply, hours)
        found = [both(one, other) for one in found for other in bundles] if len(want.roles) > 1 else bundles
        found = sorted(found, key=_order)[:_CANDIDATES_MAX]
    return tuple(found)


def bundles_of(
    part: RoleRequest, counts: Iterable[dict[str, int]], supply: RemainingSupply, hours: float
) -> list[Bundle]:
    """Return the bundle of some counts of a role; switching a worker costs ``hours`` of it."""
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
    for name, units in other.takes.items():  # of two roles of five pools there are 36 of these
        takes[name] = takes.get(name, 0) + units
    return Bundle(one.counts | other.counts, takes, one.value + other.value, one.changes + other.changes)


def _order(candidate: Bundle) -> tuple[float, int, list[int]]:
    return candidate.value, candidate.changes, [-count for _, count in sorted(candidate.counts.items())]


def _bundles(part: RoleRequest, hours: float) -> Iterable[dict[str, int]]:
    """Return the cheapest mix, and each pool with the minimum counts of the others."""
    mixed = cover(part, hours)
    if mixed is None:
        return [_all_there_may_be(part)]
    bundles = [mixed]
    given = sum(option.capacity * option.replicas_min for option in part.options)
    for option in part.options:
        missing = part.demand * (1.0 - SLACK) - (given - option.capacity * option.replicas_min)
        count = max(option.replicas_min, ceil(missing / option.capacity))
        alone = {other.pool: other.replicas_min for other in part.options} | {option.pool: count}
        if count <= option.replicas_max and alone not in bundles:
            bundles.append(alone)
    return bundles


def _all_there_may_be(part: RoleRequest) -> dict[str, int]:
    return {option.pool: option.replicas_max for option in part.options}
