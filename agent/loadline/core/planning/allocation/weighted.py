"""Allocation of short supplies by weight: the demand of a model divided by its priority.

So it is with the newest Workload Variant Autoscaler, which does it for one supply. Here a model whose shares are less
than its first choice takes is served by a mix of pools, if they and the surplus allow one; else it gets the
workers that its shares allow. What is left then goes to whom most is missing, by weight.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import floor
from typing import Final

from msgspec import Struct

from loadline.core.planning.allocation.contenders import Contender, RemainingSupply
from loadline.core.planning.allocation.leftovers import Partly, at_once, in_turns

_ROUNDING: Final = 1e-9


class WeightedClaim(Struct, frozen=True):
    """Claim of a request on a supply."""

    weight: float
    floor: int
    """Minimum share."""
    cap: int
    """Maximum share."""


def fair_shares(claims: Sequence[WeightedClaim], budget: int) -> list[int]:
    """Return whole shares of a budget: minimums first, then by weight up to the caps; largest remainders round up.

    Of equal remainders the first. Where the minimums alone are more than the budget, they are the shares.
    """
    shares = [float(claim.floor) for claim in claims]
    left = float(budget - sum(claim.floor for claim in claims))
    open_ = [number for number, claim in enumerate(claims) if claim.weight > 0.0 and claim.cap > claim.floor]
    while open_ and left > 0.0:
        level = left / sum(claims[number].weight for number in open_)
        full = [number for number in open_ if claims[number].cap - shares[number] <= level * claims[number].weight]
        for number in full or open_:
            more = claims[number].cap - shares[number] if full else level * claims[number].weight
            shares[number] += more
            left -= more
        open_ = [number for number in open_ if number not in full] if full else []
    return _rounded(shares)


def _rounded(shares: Sequence[float]) -> list[int]:
    """Round shares to whole numbers of the same sum."""
    whole = [floor(share + _ROUNDING) for share in shares]
    order = sorted(range(len(shares)), key=lambda number: (round(whole[number] - shares[number], 9), number))
    for number in order[: round(sum(shares)) - sum(whole)]:
        whole[number] += 1
    return whole


def by_weight(contenders: Sequence[Contender], supply: RemainingSupply) -> dict[str, dict[str, int]]:
    """Return the workers by request and pool, and take their GPUs from the supply."""
    ordered = sorted(contenders, key=lambda one: (-_weight(one), one.want.name))
    counts: dict[str, dict[str, int]] = {}
    short: list[tuple[Contender, RemainingSupply]] = []
    for contender, own in zip(ordered, _own_shares(ordered, supply), strict=True):
        choice = contender.candidates[0]
        if own.fits(choice.takes):
            supply.take(choice.takes)
            counts[contender.want.name] = choice.counts
        else:
            short.append((contender, own))
    turns: list[Partly] = []
    surplus = {name: units - sum(own.left[name] for _, own in short) for name, units in supply.left.items()}
    for contender, own in short:
        reach = RemainingSupply({name: units + own.left[name] for name, units in surplus.items()})
        mixed = contender.mixed(reach)
        if mixed is None:
            turns.append(_within(contender, own, supply))
        else:
            supply.take(mixed.takes)
            counts[contender.want.name] = mixed.counts
            surplus = {name: units - mixed.takes.get(name, 0) for name, units in reach.left.items()}
    counts |= {one.contender.want.name: one.counts for one in turns}
    # Of equal ones the first, by weight and name.
    queue = [(-_missing(one), number, one) for number, one in enumerate(turns)]
    heapify(queue)
    while queue:
        _, number, one = heappop(queue)
        if (not queue and at_once([one], supply)) or one.step(supply):
            heappush(queue, (-_missing(one), number, one))
    return counts


def _weight(contender: Contender) -> float:
    """Return the GPUs of the first choice, divided by the priority."""
    return sum(contender.candidates[0].takes.values()) / contender.want.priority


def _own_shares(contenders: Sequence[Contender], supply: RemainingSupply) -> list[RemainingSupply]:
    """Return the share of each request in each supply that its first choice uses."""
    own = [RemainingSupply({}) for _ in contenders]
    for name, budget in supply.left.items():
        first_choices = [contender.candidates[0].takes.get(name, 0) for contender in contenders]
        claims = [
            WeightedClaim(units / contender.want.priority, 0, units)
            for units, contender in zip(first_choices, contenders, strict=True)
        ]
        for one, share in zip(own, fair_shares(claims, budget), strict=True):
            one.left[name] = share
    return own


def _within(contender: Contender, own: RemainingSupply, supply: RemainingSupply) -> Partly:
    """Serve a request within its own shares, and take its GPUs from the supply."""
    one, before = Partly(contender, supply), dict(own.left)
    in_turns([one], own)
    supply.take({name: units - own.left[name] for name, units in before.items()})
    return one


def _missing(one: Partly) -> float:
    """Return what a request lacks, by weight."""
    return _weight(one.contender) * (1.0 - min(one.shares))
