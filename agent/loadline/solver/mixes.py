"""Enumeration of minimal pool mixes of a model: those that no longer serve it without any one worker."""

from collections.abc import Iterator
from itertools import islice
from math import ceil

from loadline.core.planning.allocation.contenders import Bundle, RemainingSupply, both, bundles_of
from loadline.core.planning.allocation.covers import SLACK
from loadline.core.vocabulary.allocations import ModelRequest, PoolOption, RoleRequest


def minimal_mixes(model: ModelRequest, supply: RemainingSupply, hours: float, limit: int) -> list[Bundle]:
    """Return all minimal mixes, or none if there are more than ``limit``; switching a worker costs ``hours`` of it."""
    mixes = [Bundle({}, {}, 0.0)]
    for request in model.roles:
        counts = sorted(islice(_mixes(request), limit + 1), key=lambda mix: list(mix.values()))
        if len(mixes) * len(counts) > limit:
            return []
        bundles = bundles_of(request, counts, supply, hours)
        mixes = [both(one, other) for one in mixes for other in bundles]
    return mixes


def _mixes(request: RoleRequest) -> Iterator[dict[str, int]]:
    """Yield counts by pool, starting from minimum replicas."""
    # By falling capacity, all are minimal: the last option that adds workers leaves less surplus than one of them
    # serves, and none of the others serves less. By name, 10^8 mixes of small workers, each ended by a large one, were
    # not, and took minutes.
    options = sorted(request.options, key=lambda option: (-option.capacity, option.pool))
    missing = request.demand * (1.0 - SLACK) - sum(option.capacity * option.replicas_min for option in options)
    for added in _added(options, missing):
        mix = {option.pool: option.replicas_min + count for option, count in zip(options, added, strict=True)}
        yield dict(sorted(mix.items()))


def _added(options: list[PoolOption], missing: float) -> Iterator[tuple[int, ...]]:
    """Yield workers per option, beyond its minimum, that serve the missing demand; the last option gets no surplus."""
    if not options:
        if missing <= 0.0:
            yield ()
        return
    option, rest = options[0], options[1:]
    needed = max(0, ceil(missing / option.capacity))
    headroom = min(needed, option.replicas_max - option.replicas_min)
    # Fewer leave more to the others than they serve. Without this bound, four models of five pools that all their
    # workers cannot serve took 3.6 s, and have no mix.
    others_serve = sum(other.capacity * (other.replicas_max - other.replicas_min) for other in rest)
    least = max(0, ceil((missing - others_serve) / option.capacity)) if rest else needed
    for count in range(least, headroom + 1):
        yield from ((count, *others) for others in _added(rest, missing - count * option.capacity))
