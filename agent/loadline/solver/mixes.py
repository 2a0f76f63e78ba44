"""All mixes of pools that serve a want and of which no worker could be left out, where these are few."""

from collections.abc import Iterator
from itertools import islice
from math import ceil

from loadline.core.planning.allocation.contenders import Bundle, RemainingSupply, both, bundles_of
from loadline.core.planning.allocation.covers import SLACK
from loadline.core.vocabulary.allocations import ModelRequest, PoolOption, RoleRequest


def minimal_mixes(want: ModelRequest, supply: RemainingSupply, hours: float, most: int) -> list[Bundle]:
    """All of them; none if there are more than ``most``. Switching a worker costs ``hours`` of it."""
    found = [Bundle({}, {}, 0.0)]
    for part in want.roles:
        counts = list(islice(_mixes(part), most + 1))
        if len(found) * len(counts) > most:
            return []
        bundles = bundles_of(part, counts, supply, hours)
        found = [both(one, other) for one in found for other in bundles]
    return found


def _mixes(part: RoleRequest) -> Iterator[dict[str, int]]:
    """Counts by pool, from the least ones on."""
    options = sorted(part.options, key=lambda option: option.pool)
    missing = part.demand * (1.0 - SLACK) - sum(option.capacity * option.replicas_min for option in options)
    for more in _more(options, missing):
        spare = sum(option.capacity * count for option, count in zip(options, more, strict=True)) - missing
        if all(option.capacity > spare for option, count in zip(options, more, strict=True) if count):
            yield {option.pool: option.replicas_min + count for option, count in zip(options, more, strict=True)}


def _more(options: list[PoolOption], missing: float) -> Iterator[tuple[int, ...]]:
    """Workers of each option beyond its least that serve what is missing; of the last one no more than it takes."""
    if not options:
        if missing <= 0.0:
            yield ()
        return
    option, rest = options[0], options[1:]
    needed = max(0, ceil(missing / option.capacity))
    room = min(needed, option.replicas_max - option.replicas_min)
    for count in range(0 if rest else needed, room + 1):
        yield from ((count, *more) for more in _more(rest, missing - count * option.capacity))
