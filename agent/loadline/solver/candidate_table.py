"""Selection of at most one candidate per model, as a table with a row per candidate and a column per supply.

``relaxed`` allows fractions of candidates: it is fast and prices each supply. ``integral`` takes whole candidates. The
relaxed solution is fractional for few models, hardly more than there are short supplies. So in a large table only the
models that are fractional, or nearly so, are solved again, and all others keep their relaxed solution.
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
"""Tolerance of integrality."""


class RelaxedSolution(Struct, frozen=True):
    """Optimal fractional solution.

    An integral solution costs ``bound``, plus the losses of its candidates and unserved models, plus its unused supply
    at its price.
    """

    bound: float
    """Lower bound on the cost of integral solutions."""
    shares: Values
    """Fraction of each candidate, 0..1."""
    losses: Values
    """Reduced cost of each candidate: its excess over the selected ones."""
    missed: Values
    """Reduced cost of leaving each model unserved."""
    prices: Values
    """Shadow price of each supply: the savings of one more unit."""


class CandidateTable:
    """Candidates of all models, in order of models, and the supply limits."""

    def __init__(self, by_model: Sequence[Sequence[Bundle]], left: dict[str, int]) -> None:
        self.candidates = [one for own in by_model for one in own]
        self.models: Places = np.repeat(np.arange(len(by_model)), [len(own) for own in by_model])
        self.values: Values = np.array([one.value for one in self.candidates])
        place = {name: number for number, name in enumerate(left)}
        self.units: Values = np.zeros((len(self.candidates), len(left)))
        for row, one in enumerate(self.candidates):
            for name, units in one.takes.items():
                self.units[row, place[name]] = units
        self.skipped: Values = np.zeros((len(by_model), len(left)))
        """Units that each model takes if it is not served."""
        self.limits: Values = np.array(list(left.values()), dtype=np.float64)

    def limit_missed(self, weights: Values, limit: float) -> None:
        """Limit the total weight of unserved models to ``limit``."""
        self.units = np.column_stack([self.units, np.zeros(len(self.candidates))])
        self.skipped = np.column_stack([self.skipped, weights])
        self.limits = np.append(self.limits, limit)

    def relaxed(self, costs: Values, time_limit_s: float) -> RelaxedSolution | None:
        """Solve the relaxed problem; return None on a timeout.

        Solves the dual, which takes two thirds of the time.
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

    def integral(
        self, costs: Values, relaxed: RelaxedSolution, models: int, gap: float, time_limit_s: float
    ) -> Values | None:
        """Find an integral solution within ``gap`` of the minimum cost; solve only the most doubtful ``models`` again.

        Returns:
            1 for each selected candidate, otherwise 0; None if no solution is found in time.
        """
        if time_limit_s <= 0.0:
            return None
        rows, limits = self._constraints()
        free = np.isin(self.models, self.doubtful(relaxed)[:models])
        selected: Values = np.where(free, 0.0, np.round(relaxed.shares))
        bound = abs(relaxed.bound - float(costs @ selected))
        found = milp(
            costs[free],
            integrality=np.ones(int(free.sum())),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(rows[free].T, -np.inf, limits - selected @ rows),
            options={"time_limit": time_limit_s, "mip_rel_gap": gap / max(gap, bound)},
        )
        if found.x is None:
            return None
        selected[free] = np.round(found.x)
        return selected if np.all(selected @ rows <= limits + WHOLE) else None

    def doubtful(self, relaxed: RelaxedSolution) -> Places:
        """Order models: fractional ones first, then by how little the second-best candidate costs more."""
        parts = np.abs(relaxed.shares - np.round(relaxed.shares)) > WHOLE
        second = np.full(len(self.skipped), np.inf)
        unselected = relaxed.shares < 1.0 - WHOLE
        np.minimum.at(second, self.models[unselected], relaxed.losses[unselected])
        second[self.models[parts]] = -1.0
        return np.argsort(second, kind="stable")

    def _constraints(self) -> tuple[Any, Values]:
        """Build the constraint rows by candidate (one per model, then units per supply) and their limits."""
        number, size = len(self.skipped), len(self.candidates)
        once = csr_array((np.ones(size), self.models, np.arange(size + 1)), shape=(size, number))
        rows = hstack([once, csr_array(self.units - self.skipped[self.models])], format="csr")
        return rows, np.concatenate([np.ones(number), self.limits - self.skipped.sum(axis=0)])
