"""Distribution of the remaining supplies to models that cannot be served in full, worker by worker."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from loadline.core.planning.allocation.contenders import Bundle, Contender, RemainingSupply, served
from loadline.core.vocabulary.allocations import PoolOption, SaturationPolicy

_SLICES: Final = 64
"""A want of several parts takes at once no more than a 64th of what it lacks, and so parts differ by no more."""
_NEAR: Final = 1.0 / _SLICES
"""Shares that are no further apart are alike."""


class Partly:
    """A request that is served in part, with workers of its first candidate that fits."""

    def __init__(self, contender: Contender, supply: RemainingSupply) -> None:
        self.contender = contender
        self.counts = contender.least()
        self.candidate: Bundle | None = None
        parts = contender.want.roles
        self._takes = {option.pool: supply.limited(option) for part in parts for option in part.options}
        self._ordered = [sorted(part.options, key=_price) for part in parts]
        self.shares = [served(part, self.counts) for part in parts]
        """Of each part, what is served of it."""

    def step(self, supply: RemainingSupply) -> bool:
        """Add one worker for the role that is served least; at first one for each role that has none.

        Parts are served together: one that cannot grow ends it all.
        """
        candidates = self.contender.candidates if self.candidate is None else (self.candidate,)
        for candidate in candidates:
            workers = dict.fromkeys(self._next(candidate, supply), 1)
            takes = self.takes(workers)
            if workers and supply.fits(takes):
                supply.take(takes)
                self.candidate = candidate
                self.grow(workers)
                return True
        return False

    def takes(self, workers: Mapping[str, int]) -> dict[str, int]:
        """Return the GPUs that some workers of each pool take of limited supplies."""
        takes: dict[str, int] = {}
        for pool, count in workers.items():
            for name, units in self._takes[pool].items():
                takes[name] = takes.get(name, 0) + units * count
        return takes

    def grow(self, workers: Mapping[str, int]) -> None:
        """Add workers of each pool."""
        for pool, count in workers.items():
            self.counts[pool] += count
        self.shares = [served(part, self.counts) for part in self.contender.want.roles]

    def lacks(self, supply: RemainingSupply) -> dict[str, int]:
        """Return the workers by pool that the next steps add if supplies last; empty: take each step alone.

        Exact for one part. Parts that are served alike lack in proportion, each a 64th less than it would.
        """
        if self.candidate is None or not self.shares:
            return {}
        least = min(self.shares)
        near = 0.0 if len(self.shares) == 1 else _NEAR
        found: dict[str, int] = {}
        for part, share, options in zip(self.contender.want.roles, self.shares, self._ordered, strict=True):
            if share <= least + near and share < 1.0:
                option = next(self._missing(options, self.candidate, supply), None)
                if option is None:
                    return {}
                # One less than it may be: where the part is served is left to a step.
                more = int((1.0 - share) * part.demand / option.capacity) - 1
                found[option.pool] = min(more, self.candidate.counts[option.pool] - self.counts[option.pool])
        return found if min(found.values(), default=0) > 0 else {}

    def _next(self, candidate: Bundle, supply: RemainingSupply) -> list[str]:
        """Return the pools that get one worker each in the next step."""
        least = min(self.shares, default=1.0)
        if least >= 1.0:
            return []
        behind = [options for options, share in zip(self._ordered, self.shares, strict=True) if share == least]
        growing = behind if least == 0.0 else behind[:1]
        found = [next(self._missing(options, candidate, supply), None) for options in growing]
        return [option.pool for option in found if option is not None] if None not in found else []

    def _missing(
        self, options: Iterable[PoolOption], candidate: Bundle, supply: RemainingSupply
    ) -> Iterator[PoolOption]:
        """Return those of these pools that lack workers and of which one more fits."""
        for option in options:
            more = self.counts[option.pool] < candidate.counts.get(option.pool, 0)
            if more and supply.fits(self._takes[option.pool]):
                yield option


def _price(option: PoolOption) -> tuple[float, str]:
    """Order pools by cost."""
    return option.cost_per_hour / option.capacity, option.pool


def share_out(
    unserved: Sequence[Contender], supply: RemainingSupply, policy: SaturationPolicy
) -> dict[str, dict[str, int]]:
    """Return the counts of the requests that got any worker, by policy and in order.

    ``priority_exhaustive``: each in turn takes all it can. ``priority_round_robin``: of each priority, each takes a
    worker a turn. ``round_robin``: of all, each takes a worker a turn. ``none``: nobody gets any.
    """
    partly = [Partly(contender, supply) for contender in unserved]
    if policy == "priority_exhaustive":
        for one in partly:
            in_turns([one], supply)
    elif policy == "priority_round_robin":
        for _, group in groupby(partly, lambda one: one.contender.want.priority):
            in_turns(list(group), supply)
    elif policy == "round_robin":
        in_turns(partly, supply)
    return {one.contender.want.name: one.counts for one in partly if one.candidate is not None}


def in_turns(turns: list[Partly], supply: RemainingSupply) -> None:
    """Give each request a worker a turn, until none fits."""
    while turns:
        if not at_once(turns, supply):
            turns = [one for one in turns if one.step(supply)]


def at_once(turns: Sequence[Partly], supply: RemainingSupply) -> bool:
    """Take several turns of all at once, if all go on as they do for some turns: 10,000 workers one by one take 0.1 s.

    Gives whether that was possible. One that cannot grow ends it, for it is out from the next turn on.
    """
    lacks = [one.lacks(supply) for one in turns]
    # Of several parts a few of many, so that they stay alike.
    rounds = min(
        sum(lack.values()) // (1 if len(one.shares) == 1 else _SLICES) for one, lack in zip(turns, lacks, strict=True)
    )
    while rounds > 1:
        more = [{pool: rounds * count // sum(one.values()) for pool, count in one.items()} for one in lacks]
        takes: dict[str, int] = {}
        for one, workers in zip(turns, more, strict=True):
            for name, units in one.takes(workers).items():
                takes[name] = takes.get(name, 0) + units
        if supply.fits(takes):
            supply.take(takes)
            for one, workers in zip(turns, more, strict=True):
                one.grow(workers)
            return True
        rounds //= 2
    return False
