"""What is left of the supplies goes to models that cannot be served whole, worker by worker."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from loadline.core.allocations import Part, SaturationPolicy
from loadline.core.planning.allocation.contenders import Candidate, Contender, Supply, served


class Partly(Struct):
    """A want that gets some of what it wants: workers of one of its candidates, the first of which any fit."""

    contender: Contender
    counts: dict[str, int]
    candidate: Candidate | None = None

    def step(self, supply: Supply) -> bool:
        """One worker more for the part that is served least; at first one for each that nobody serves.

        Parts are served together: one that cannot grow ends it all.
        """
        candidates = self.contender.candidates if self.candidate is None else (self.candidate,)
        for candidate in candidates:
            workers = self._next(candidate, supply)
            takes = self.takes(workers, supply)
            if workers and supply.fits(takes):
                supply.take(takes)
                self.candidate = candidate
                for pool in workers:
                    self.counts[pool] += 1
                return True
        return False

    def takes(self, workers: Sequence[str], supply: Supply) -> dict[str, int]:
        """What one worker of each of these pools takes of limited supplies."""
        takes: dict[str, int] = {}
        for option in self.contender.options:
            if option.pool in workers:
                for name, units in supply.limited(option).items():
                    takes[name] = takes.get(name, 0) + units
        return takes

    def _next(self, candidate: Candidate, supply: Supply) -> list[str]:
        """The pools of which one worker each comes next."""
        shares = [served(part, self.counts) for part in self.contender.want.parts]
        least = min(shares, default=1.0)
        if least >= 1.0:
            return []
        behind = [part for part, share in zip(self.contender.want.parts, shares, strict=True) if share == least]
        growing = behind if least == 0.0 else behind[:1]
        found = [next(self._missing(part, candidate, supply), None) for part in growing]
        return [pool for pool in found if pool is not None] if None not in found else []

    def _missing(self, part: Part, candidate: Candidate, supply: Supply) -> Iterator[str]:
        """Pools of a part that lack workers of the candidate, and of which one more fits: the cheapest first."""
        for option in sorted(part.options, key=lambda option: (option.cost / option.serves, option.pool)):
            more = self.counts[option.pool] < candidate.counts.get(option.pool, 0)
            if more and supply.fits(supply.limited(option)):
                yield option.pool


def share_out(unserved: Sequence[Contender], supply: Supply, policy: SaturationPolicy) -> dict[str, dict[str, int]]:
    """Counts of those that got any, by a policy; those that come first have the first turn.

    ``priority_exhaustive``: each in turn takes all it can. ``priority_round_robin``: of each priority, each takes a
    worker a turn. ``round_robin``: of all, each takes a worker a turn. ``none``: nobody gets any.
    """
    partly = [Partly(contender, contender.least()) for contender in unserved]
    if policy == "priority_exhaustive":
        for one in partly:
            _in_turns([one], supply)
    elif policy == "priority_round_robin":
        for _, group in groupby(partly, lambda one: one.contender.want.priority):
            _in_turns(list(group), supply)
    elif policy == "round_robin":
        _in_turns(partly, supply)
    return {one.contender.want.name: one.counts for one in partly if one.candidate is not None}


def _in_turns(turns: list[Partly], supply: Supply) -> None:
    while turns:
        turns = [one for one in turns if one.step(supply)]
