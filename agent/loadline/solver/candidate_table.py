"""One candidate for each want, or none: as a table of a row a candidate, and a column a supply.

``relaxed`` takes parts of candidates, which is quick and says what each supply is worth. ``chosen`` takes whole ones.
In the relaxed choice few wants are in parts, hardly more than supplies are short. So of a large table only the wants
that are, or nearly are, are chosen anew, and all others stay as relaxed.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, hstack

from loadline.core.planning.allocation.contenders import Bundle

Values = NDArray[np.float64]
Places = NDArray[np.int64]
WHOLE: Final = 1e-6
"""What is as near to a whole number is one."""


class RelaxedSolution(Struct, frozen=True):
    """The best choice of parts of candidates.

    A choice of whole ones costs ``bound``, the losses of what is taken and of the wants that are not served, and what
    is left of each supply at its price.
    """

    bound: float
    """What no choice of whole ones betters."""
    shares: Values
    """Of each candidate, 0..1."""
    losses: Values
    """What a candidate costs more than those that are taken."""
    missed: Values
    """The same of each want, if it is not served."""
    prices: Values
    """What one unit more of each supply would save."""


class CandidateTable:
    """Candidates of wants, in the order in which they come, and the limits of what they take."""

    def __init__(self, candidates: Sequence[Sequence[Bundle]], left: dict[str, int]) -> None:
        self.choices = [one for own in candidates for one in own]
        self.wants: Places = np.repeat(np.arange(len(candidates)), [len(own) for own in candidates])
        self.values: Values = np.array([one.value for one in self.choices])
        place = {name: number for number, name in enumerate(left)}
        self.units: Values = np.zeros((len(self.choices), len(left)))
        for row, one in enumerate(self.choices):
            for name, units in one.takes.items():
                self.units[row, place[name]] = units
        self.skipped: Values = np.zeros((len(candidates), len(left)))
        """What each want takes if it is not served."""
        self.limits: Values = np.array(list(left.values()), dtype=np.float64)

    def limit_missed(self, weights: Values, most: float) -> None:
        """Leave only wants unserved from now on whose weights are so much together at most."""
        self.units = np.column_stack([self.units, np.zeros(len(self.choices))])
        self.skipped = np.column_stack([self.skipped, weights])
        self.limits = np.append(self.limits, most)

    def relaxed(self, costs: Values, time_limit_s: float) -> RelaxedSolution | None:
        """The least sum of costs, with candidates in parts; None if it is not found in time.

        The dual is solved: it takes two thirds of the time.
        """
        if time_limit_s <= 0.0:
            return None
        number, (rows, limits) = len(self.skipped), self._constraints()
        options = {"time_limit": time_limit_s, "presolve": False}
        found = linprog(limits, A_ub=-rows, b_ub=costs, method="highs", options=options)
        if found.status != 0:
            return None
        shares = -found.ineqlin.marginals
        return RelaxedSolution(-found.fun, shares, np.maximum(0.0, found.slack), found.x[:number], found.x[number:])

    def chosen(
        self, costs: Values, relaxed: RelaxedSolution, wants: int, near: float, time_limit_s: float
    ) -> Values | None:
        """The candidates taken (1) or not (0) for the least sum of costs, within ``near``; None if none is found.

        So many ``wants`` are chosen anew, those first for which that matters most.
        """
        if time_limit_s <= 0.0:
            return None
        rows, limits = self._constraints()
        free = np.isin(self.wants, self.doubtful(relaxed)[:wants])
        taken: Values = np.where(free, 0.0, np.round(relaxed.shares))
        bound = abs(relaxed.bound - float(costs @ taken))
        found = milp(
            costs[free],
            integrality=np.ones(int(free.sum())),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(rows[free].T, -np.inf, limits - taken @ rows),
            options={"time_limit": time_limit_s, "mip_rel_gap": near / max(near, bound)},
        )
        if found.x is None:
            return None
        taken[free] = np.round(found.x)
        return taken if np.all(taken @ rows <= limits + WHOLE) else None

    def doubtful(self, relaxed: RelaxedSolution) -> Places:
        """All wants: those first that are in parts, then those to which another candidate is nearly as good."""
        parts = np.abs(relaxed.shares - np.round(relaxed.shares)) > WHOLE
        second = np.full(len(self.skipped), np.inf)
        others = relaxed.shares < 1.0 - WHOLE
        np.minimum.at(second, self.wants[others], relaxed.losses[others])
        second[self.wants[parts]] = -1.0
        return np.argsort(second, kind="stable")

    def _constraints(self) -> tuple[Any, Values]:
        """By candidate, of how much it takes of each want, that is one, and of each supply; and the limits of these."""
        number, size = len(self.skipped), len(self.choices)
        once = csr_array((np.ones(size), self.wants, np.arange(size + 1)), shape=(size, number))
        rows = hstack([once, csr_array(self.units - self.skipped[self.wants])], format="csr")
        return rows, np.concatenate([np.ones(number), self.limits - self.skipped.sum(axis=0)])
