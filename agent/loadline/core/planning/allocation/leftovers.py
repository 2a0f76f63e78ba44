"""Distribution of the remaining supplies to models that cannot be served in full, worker by worker."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from loadline.core.planning.allocation.contenders import Bundle, Contender, RemainingSupply, served
from loadline.core.vocabulary.allocations import PoolOption, SaturationPolicy

_SLICES: Final = 64
"""Several workers at once serve at most a 64th of what a request with several roles lacks, so roles stay balanced."""
_SHARE_TOLERANCE: Final = 1.0 / _SLICES
"""Difference up to which shares of roles count as equal."""


class PartialGrant:
    """Partial grant of a request: workers of its first candidate that fits."""

    def __init__(self, contender: Contender, supply: RemainingSupply) -> None:
        self.contender = contender
        self.counts = contender.minimums()
        self.candidate: Bundle | None = None
        parts = contender.request.roles
        self._takes = {option.pool: supply.limited(option) for part in parts for option in part.options}
        self._ordered = [sorted(part.options, key=_price) for part in parts]
        self.shares = [served(part, self.counts) for part in parts]
        """Fraction of the demand that is served, by role."""

    def step(self, supply: RemainingSupply) -> bool:
        """Add one worker to the role with the lowest share, and at first one to each role that has none.

        Roles are served together: if one cannot grow, no other does.

        Returns:
            True if a worker was added.
        """
        candidates = self.contender.candidates if self.candidate is None else (self.candidate,)
        for candidate in candidates:
            workers = dict.fromkeys(self._next_pools(candidate, supply), 1)
            takes = self.takes(workers)
            if workers and supply.fits(takes):
                supply.take(takes)
                self.candidate = candidate
                self.grow(workers)
                return True
        return False

    def takes(self, workers: Mapping[str, int]) -> dict[str, int]:
        """Return the GPUs of limited supplies that some workers of each pool take."""
        takes: dict[str, int] = {}
        for pool, count in workers.items():
            for name, units in self._takes[pool].items():
                takes[name] = takes.get(name, 0) + units * count
        return takes

    def grow(self, workers: Mapping[str, int]) -> None:
        """Add workers of each pool."""
        for pool, count in workers.items():
            self.counts[pool] += count
        self.shares = [served(part, self.counts) for part in self.contender.request.roles]

    def missing_workers(self, supply: RemainingSupply) -> dict[str, int]:
        """Return the workers by pool that the next steps add if supplies suffice; empty: only single steps are safe.

        Exact for a request with one role. With several, roles of nearly equal shares grow in proportion.
        """
        if self.candidate is None or not self.shares:
            return {}
        lowest = min(self.shares)
        tolerance = 0.0 if len(self.shares) == 1 else _SHARE_TOLERANCE
        found: dict[str, int] = {}
        for part, share, options in zip(self.contender.request.roles, self.shares, self._ordered, strict=True):
            if share <= lowest + tolerance and share < 1.0:
                option = next(self._growable(options, self.candidate, supply), None)
                if option is None:
                    return {}
                # One less than needed: a single step decides if the role is served.
                count = int((1.0 - share) * part.demand / option.capacity) - 1
                found[option.pool] = min(count, self.candidate.counts[option.pool] - self.counts[option.pool])
        return found if min(found.values(), default=0) > 0 else {}

    def _next_pools(self, candidate: Bundle, supply: RemainingSupply) -> list[str]:
        """Return the pools that get one worker each in the next step."""
        lowest = min(self.shares, default=1.0)
        if lowest >= 1.0:
            return []
        lowest_roles = [options for options, share in zip(self._ordered, self.shares, strict=True) if share == lowest]
        growing = lowest_roles if lowest == 0.0 else lowest_roles[:1]
        found = [next(self._growable(options, candidate, supply), None) for options in growing]
        return [option.pool for option in found if option is not None] if None not in found else []

    def _growable(
        self, options: Iterable[PoolOption], candidate: Bundle, supply: RemainingSupply
    ) -> Iterator[PoolOption]:
        """Yield the pools that have fewer workers than in a candidate, and for which one more fits."""
        for option in options:
            is_short = self.counts[option.pool] < candidate.counts.get(option.pool, 0)
            if is_short and supply.fits(self._takes[option.pool]):
                yield option


def _price(option: PoolOption) -> tuple[float, str]:
    """Return the sort key of pools: cost per unit of demand, then name."""
    return option.cost_per_hour / option.capacity, option.pool


def share_out(
    unserved: Sequence[Contender], supply: RemainingSupply, policy: SaturationPolicy
) -> dict[str, dict[str, int]]:
    """Distribute the remaining supplies to unserved requests, in their order.

    ``priority_exhaustive``: each request in turn takes all it can. ``priority_round_robin``: requests of one priority
    take a worker in turn. ``round_robin``: all requests take a worker in turn. ``none``: no request takes any.

    Returns:
        The counts by request and pool, of requests that get any worker.
    """
    grants = [PartialGrant(contender, supply) for contender in unserved]
    if policy == "priority_exhaustive":
        for grant in grants:
            distribute_in_turns([grant], supply)
    elif policy == "priority_round_robin":
        for _, group in groupby(grants, lambda grant: grant.contender.request.priority):
            distribute_in_turns(list(group), supply)
    elif policy == "round_robin":
        distribute_in_turns(grants, supply)
    return {grant.contender.request.name: grant.counts for grant in grants if grant.candidate is not None}


def distribute_in_turns(grants: list[PartialGrant], supply: RemainingSupply) -> None:
    """Add a worker to each grant in turn, until none fits."""
    while grants:
        if not take_rounds(grants, supply):
            grants = [grant for grant in grants if grant.step(supply)]


def take_rounds(grants: Sequence[PartialGrant], supply: RemainingSupply) -> bool:
    """Take several rounds of turns at once, since 10,000 workers one by one take 0.1 s.

    Returns:
        False if no two rounds are alike, for instance since a grant cannot grow and drops out.
    """
    missing = [grant.missing_workers(supply) for grant in grants]
    # Few rounds at once for several roles, so that their shares stay balanced.
    rounds = min(
        sum(counts.values()) // (1 if len(grant.shares) == 1 else _SLICES)
        for grant, counts in zip(grants, missing, strict=True)
    )
    while rounds > 1:
        added = [{pool: rounds * count // sum(one.values()) for pool, count in one.items()} for one in missing]
        takes: dict[str, int] = {}
        for grant, workers in zip(grants, added, strict=True):
            for name, units in grant.takes(workers).items():
                takes[name] = takes.get(name, 0) + units
        # Few rounds over many pools are no worker for any: without progress, the turns would never end.
        if all(any(workers.values()) for workers in added) and supply.fits(takes):
            supply.take(takes)
            for grant, workers in zip(grants, added, strict=True):
                grant.grow(workers)
            return True
        rounds //= 2
    return False
