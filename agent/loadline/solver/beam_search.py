"""Beam search for a good integral solution, guided by the relaxed solution; takes some ten milliseconds.

Models are assigned one after the other, doubtful ones first, and the best partial assignments are continued.
An assignment is scored by its losses and by how close the remaining supply is to the needs of the remaining models
in the relaxed solution: surplus costs its price, and a shortage costs a multiple of it.
"""

from typing import Final

import numpy as np

from loadline.solver.candidate_table import WHOLE, CandidateTable, Places, RelaxedSolution, Values

_BEAM_WIDTH: Final = 300
"""Partial assignments per step: with 100, one of 60 fleets of 100 models still needs the integer program."""
_SHORTAGE_FACTOR: Final = 3.0
"""Price factor of a shortage: with 1, three of these fleets need the integer program; with 5, costs are higher."""


def beam_search(table: CandidateTable, relaxed: RelaxedSolution, below: float) -> Values | None:
    """Return 1 for each selected candidate, otherwise 0, at a total cost below ``below``; None if none is found."""
    starts = np.searchsorted(table.models, np.arange(len(table.skipped) + 1))
    shares = relaxed.shares[:, np.newaxis]
    served = np.add.reduceat(shares, starts[:-1])
    needs = np.add.reduceat(table.units * shares, starts[:-1]) + (1.0 - served) * table.skipped
    needed = needs.sum(axis=0)[:, np.newaxis]
    prices, loss_max = relaxed.prices, below - relaxed.bound
    left, lost, scores = table.limits[:, np.newaxis] + WHOLE, np.zeros(1), np.zeros(1)
    steps: list[tuple[Places, Places]] = []
    for model in table.doubtful(relaxed):
        own = np.arange(starts[model], starts[model + 1])
        losses = np.append(relaxed.losses[own], relaxed.missed[model])
        units = np.vstack([table.units[own], table.skipped[model]]).T
        options = np.append(own, -1)
        total = lost[:, np.newaxis] + losses
        rest = left[:, :, np.newaxis] - units[:, np.newaxis, :]
        before, number = np.nonzero((total < loss_max) & (rest >= 0.0).all(axis=0))
        lost, left = total[before, number], rest[:, before, number]
        needed = needed - needs[model][:, np.newaxis]
        surplus = left - needed
        scores = lost + prices @ np.maximum(surplus, -_SHORTAGE_FACTOR * surplus)
        if lost.size > _BEAM_WIDTH:
            best = np.argpartition(scores, _BEAM_WIDTH)[:_BEAM_WIDTH]
            before, number, lost, left, scores = before[best], number[best], lost[best], left[:, best], scores[best]
        steps.append((before, options[number]))
    if not scores.size or scores.min() >= loss_max:
        return None
    selected, at = np.zeros(len(table.candidates)), int(scores.argmin())
    for before, chosen in reversed(steps):
        if chosen[at] >= 0:
            selected[chosen[at]] = 1.0
        at = before[at]
    return selected
