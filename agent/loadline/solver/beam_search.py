"""A good choice of whole candidates in some ten milliseconds: a beam search along the losses of the relaxed choice.

The wants are chosen one after the other, the doubtful ones first, and of all choices so far the best few hundred are
kept. A choice is as good as its losses are small and as what it leaves of the supplies is near to what the relaxed
choice has for the wants to come: what is left over costs its price, and what is missing must be made up for.
"""

from typing import Final

import numpy as np

from loadline.solver.candidate_table import WHOLE, CandidateTable, Places, RelaxedSolution, Values

_KEPT: Final = 300
"""Choices after each want: with 100, one of 60 fleets of 100 wants needs a program all the same."""
_MISSING: Final = 3.0
"""What is missing costs so many times its price: with 1, three of these fleets need one, and with 5 they cost more."""


def beam_search(table: CandidateTable, relaxed: RelaxedSolution, below: float) -> Values | None:
    """The candidates that are taken (1) or not (0), for a sum of costs below that; None if none is found."""
    starts = np.searchsorted(table.wants, np.arange(len(table.skipped) + 1))
    shares = relaxed.shares[:, np.newaxis]
    served = np.add.reduceat(shares, starts[:-1])
    needs = np.add.reduceat(table.units * shares, starts[:-1]) + (1.0 - served) * table.skipped
    to_come = needs.sum(axis=0)[:, np.newaxis]
    prices, most = relaxed.prices, below - relaxed.bound
    left, lost, scores = table.limits[:, np.newaxis] + WHOLE, np.zeros(1), np.zeros(1)
    steps: list[tuple[Places, Places]] = []
    for want in table.doubtful(relaxed):
        own = np.arange(starts[want], starts[want + 1])
        losses = np.append(relaxed.losses[own], relaxed.missed[want])
        units = np.vstack([table.units[own], table.skipped[want]]).T
        choices = np.append(own, -1)
        more = lost[:, np.newaxis] + losses
        rest = left[:, :, np.newaxis] - units[:, np.newaxis, :]
        before, number = np.nonzero((more < most) & (rest >= 0.0).all(axis=0))
        lost, left = more[before, number], rest[:, before, number]
        to_come = to_come - needs[want][:, np.newaxis]
        spare = left - to_come
        scores = lost + prices @ np.maximum(spare, -_MISSING * spare)
        if lost.size > _KEPT:
            kept = np.argpartition(scores, _KEPT)[:_KEPT]
            before, number, lost, left, scores = before[kept], number[kept], lost[kept], left[:, kept], scores[kept]
        steps.append((before, choices[number]))
    if not scores.size or scores.min() >= most:
        return None
    taken, at = np.zeros(len(table.choices)), int(scores.argmin())
    for before, chosen in reversed(steps):
        if chosen[at] >= 0:
            taken[chosen[at]] = 1.0
        at = before[at]
    return taken
