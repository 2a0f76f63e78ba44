"""Allocation of short supplies by weight: the demand of a model divided by its priority.

The newest Workload Variant Autoscaler does this for one supply. Here, a model whose shares do not cover its first
candidate is served by a mix of pools if its shares and the surplus allow one; otherwise it gets the workers that its
shares allow. Remaining GPUs go to the models with the largest weighted shortfall.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import floor
from typing import Final

from msgspec import Struct

from loadline.core.planning.allocation.contenders import Contender, RemainingSupply
from loadline.core.planning.allocation.leftovers import PartialGrant, distribute_in_turns, take_rounds

_ROUNDING: Final = 1e-9


class WeightedClaim(Struct, frozen=True):
    """Weighted claim of a request on a supply."""

    weight: float
    floor: int
    """Minimum share."""
    cap: int
    """Maximum share."""


def fair_shares(claims: Sequence[WeightedClaim], budget: int) -> list[int]:
    """Divide a budget into whole shares: minimums first, then by weight up to the caps.

    The largest remainders round up; of equal ones the first. If the minimums exceed the budget, they are the shares.
    """
    shares = [float(claim.floor) for claim in claims]
    left = float(budget - sum(claim.floor for claim in claims))
    open_ = [number for number, claim in enumerate(claims) if claim.weight > 0.0 and claim.cap > claim.floor]
    while open_ and left > 0.0:
        level = left / sum(claims[number].weight for number in open_)
        full = [number for number in open_ if claims[number].cap - shares[number] <= level * claims[number].weight]
        for number in full or open_:
            added = claims[number].cap - shares[number] if full else level * claims[number].weight
            shares[number] += added
            left -= added
        open_ = [number for number in open_ if number not in full] if full else []
    return _rounded(shares)


def _rounded(shares: Sequence[float]) -> list[int]:
    """Round shares to integers without changing their sum."""
    whole = [floor(share + _ROUNDING) for share in shares]
    order = sorted(range(len(shares)), key=lambda number: (round(whole[number] - shares[number], 9), number))
    for number in order[: round(sum(shares)) - sum(whole)]:
        whole[number] += 1
    return whole


def by_weight(contenders: Sequence[Contender], supply: RemainingSupply) -> dict[str, dict[str, int]]:
    """Return the granted counts by request and pool; take their GPUs from the supply."""
    ordered = sorted(contenders, key=lambda one: (-_weight(one), one.request.name))
    counts: dict[str, dict[str, int]] = {}
    short: list[tuple[Contender, RemainingSupply]] = []
    for contender, own in zip(ordered, _own_shares(ordered, supply), strict=True):
        bundle = contender.candidates[0]
        if own.fits(bundle.takes):
            supply.take(bundle.takes)
            counts[contender.request.name] = bundle.counts
        else:
            short.append((contender, own))
    grants: list[PartialGrant] = []
    surplus = {name: units - sum(own.left[name] for _, own in short) for name, units in supply.left.items()}
    for contender, own in short:
        available = RemainingSupply({name: units + own.left[name] for name, units in surplus.items()})
        mixed = contender.mixed(available)
        if mixed is None:
            grants.append(_grant_shares(contender, own, supply))
        else:
            supply.take(mixed.takes)
            counts[contender.request.name] = mixed.counts
            surplus = {name: units - mixed.takes.get(name, 0) for name, units in available.left.items()}
    counts |= {grant.contender.request.name: grant.counts for grant in grants}
    # Ties are in the order of weight and name.
    queue = [(-_shortfall(grant), number, grant) for number, grant in enumerate(grants)]
    heapify(queue)
    while queue:
        _, number, grant = heappop(queue)
        if (not queue and take_rounds([grant], supply)) or grant.step(supply):
            heappush(queue, (-_shortfall(grant), number, grant))
    return counts


def _weight(contender: Contender) -> float:
    """Return the GPUs of the first candidate, divided by the priority."""
    return sum(contender.candidates[0].takes.values()) / contender.request.priority


def _own_shares(contenders: Sequence[Contender], supply: RemainingSupply) -> list[RemainingSupply]:
    """Return the share of each request in each supply that its first candidate takes."""
    own = [RemainingSupply({}) for _ in contenders]
    for name, budget in supply.left.items():
        needed = [contender.candidates[0].takes.get(name, 0) for contender in contenders]
        claims = [
            WeightedClaim(units / contender.request.priority, 0, units)
            for units, contender in zip(needed, contenders, strict=True)
        ]
        for one, share in zip(own, fair_shares(claims, budget), strict=True):
            one.left[name] = share
    return own


def _grant_shares(contender: Contender, own: RemainingSupply, supply: RemainingSupply) -> PartialGrant:
    """Serve a request within its own shares; take its GPUs from the supply."""
    grant, before = PartialGrant(contender, supply), dict(own.left)
    distribute_in_turns([grant], own)
    supply.take({name: units - own.left[name] for name, units in before.items()})
    return grant


def _shortfall(grant: PartialGrant) -> float:
    """Return the unserved demand of a request, weighted."""
    return _weight(grant.contender) * (1.0 - min(grant.shares))
