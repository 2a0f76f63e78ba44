"""Beam search for a good integral solution, guided by the relaxed solution; takes some ten milliseconds.

Models are assigned one after the other, doubtful ones first, and the best few hundred partial assignments are kept.
An assignment is scored by its losses and by how close the remaining supply is to the needs of the remaining models
in the relaxed solution: surplus costs its price, and a shortage costs a multiple of it.
"""

from typing import Final

import numpy as np

from loadline.solver.candidate_table import WHOLE, CandidateTable, Places, RelaxedSolution, Values

_KEPT: Final = 300
"""Beam width: with 100, one of 60 fleets of 100 models still needs the integer program."""
_MISSING: Final = 3.0
"""Price factor of a shortage: with 1, three of these fleets need the integer program; with 5, costs are higher."""


def beam_search(table: CandidateTable, relaxed: RelaxedSolution, below: float) -> Values | None:
    """Return which candidates are taken (1) or not (0) at a total cost below ``below``, or None if none is found."""
    starts = np.searchsorted(table.models, np.arange(len(table.skipped) + 1))
    shares = relaxed.shares[:, np.newaxis]
    served = np.add.reduceat(shares, starts[:-1])
    needs = np.add.reduceat(table.units * shares, starts[:-1]) + (1.0 - served) * table.skipped
    to_come = needs.sum(axis=0)[:, np.newaxis]
    prices, loss_max = relaxed.prices, below - relaxed.bound
    left, lost, scores = table.limits[:, np.newaxis] + WHOLE, np.zeros(1), np.zeros(1)
    steps: list[tuple[Places, Places]] = []
    for model in table.doubtful(relaxed):
        own = np.arange(starts[model], starts[model + 1])
        losses = np.append(relaxed.losses[own], relaxed.missed[model])
        units = np.vstack([table.units[own], table.skipped[model]]).T
        choices = np.append(own, -1)
        more = lost[:, np.newaxis] + losses
        rest = left[:, :, np.newaxis] - units[:, np.newaxis, :]
        before, number = np.nonzero((more < loss_max) & (rest >= 0.0).all(axis=0))
        lost, left = more[before, number], rest[:, before, number]
        to_come = to_come - needs[model][:, np.newaxis]
        spare = left - to_come
        scores = lost + prices @ np.maximum(spare, -_MISSING * spare)
        if lost.size > _KEPT:
            kept = np.argpartition(scores, _KEPT)[:_KEPT]
            before, number, lost, left, scores = before[kept], number[kept], lost[kept], left[:, kept], scores[kept]
        steps.append((before, choices[number]))
    if not scores.size or scores.min() >= loss_max:
        return None
    taken, at = np.zeros(len(table.choices)), int(scores.argmin())
    for before, chosen in reversed(steps):
        if chosen[at] >= 0:
            taken[chosen[at]] = 1.0
        at = before[at]
    return taken
