"""One candidate for each want, or none: as a table of a column a candidate, and a row a want or a supply.

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
from scipy.sparse import csr_array, vstack

from loadline.core.planning.allocation.contenders import Candidate

Values = NDArray[np.float64]
Places = NDArray[np.int64]
_WHOLE: Final = 1e-6


class Relaxed(Struct, frozen=True):
    """The best choice of parts of candidates."""

    bound: float
    """What no choice of whole ones betters."""
    shares: Values
    """Of each column, 0..1."""
    losses: Values
    """What a column costs more than those that are taken."""
    prices: Values
    """What one unit more of each supply would save."""


class Table:
    """Candidates of wants, in the order in which they come, and the limits of what they take."""

    def __init__(self, candidates: Sequence[Sequence[Candidate]], left: dict[str, int]) -> None:
        self.columns = [one for own in candidates for one in own]
        self.wants: Places = np.repeat(np.arange(len(candidates)), [len(own) for own in candidates])
        self.values: Values = np.array([one.value for one in self.columns])
        place = {name: len(candidates) + number for number, name in enumerate(left)}
        taken = [(place[name], at, units) for at, one in enumerate(self.columns) for name, units in one.takes.items()]
        rows, at, units = np.array(taken, dtype=np.int64).reshape(-1, 3).T
        every = np.arange(len(self.columns))
        entries = np.concatenate([np.ones(every.size), units])
        places = np.concatenate([self.wants, rows]), np.concatenate([every, at])
        self._rows: Any = csr_array((entries, places), shape=(len(candidates) + len(left), every.size))
        self._limits = np.concatenate([np.ones(len(candidates)), np.array(list(left.values()), dtype=np.float64)])
        self._number, self._supplies = len(candidates), len(left)

    def hold(self, costs: Values, most: float) -> None:
        """Keep a sum of costs over what is taken to a most from now on."""
        self._rows = vstack([self._rows, csr_array(costs[np.newaxis, :])], format="csr")
        self._limits = np.append(self._limits, most)

    def relaxed(self, costs: Values, time_limit_s: float) -> Relaxed | None:
        """The least sum of costs, with candidates in parts; None if it is not found in time."""
        if time_limit_s <= 0.0:
            return None
        options = {"time_limit": time_limit_s}
        found = linprog(costs, A_ub=self._rows, b_ub=self._limits, method="highs", options=options)
        if found.status != 0:
            return None
        marginals = -found.ineqlin.marginals
        losses = costs + self._rows.T @ marginals
        prices = marginals[self._number : self._number + self._supplies]
        return Relaxed(found.fun, found.x, losses, prices)

    def chosen(self, costs: Values, relaxed: Relaxed, wants: int, near: float, time_limit_s: float) -> Values | None:
        """The columns that are taken (1) or not (0) for the least sum of costs, within ``near``; None if none is found.

        So many ``wants`` are chosen anew, those first for which that matters most.
        """
        if time_limit_s <= 0.0:
            return None
        free = self._free(relaxed, wants)
        taken: Values = np.where(free, 0.0, np.round(relaxed.shares))
        rows = self._rows[:, np.flatnonzero(free)]
        bound = abs(relaxed.bound - float(costs @ taken))
        found = milp(
            costs[free],
            integrality=np.ones(rows.shape[1]),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(rows, -np.inf, self._limits - self._rows @ taken),
            options={"time_limit": time_limit_s, "mip_rel_gap": near / max(near, bound)},
        )
        if found.x is None:
            return None
        taken[free] = np.round(found.x)
        return taken if np.all(self._rows @ taken <= self._limits + _WHOLE) else None

    def _free(self, relaxed: Relaxed, wants: int) -> NDArray[np.bool_]:
        """Columns of the wants that are in parts, and of those to which another candidate is nearly as good."""
        if self._number <= wants:
            return np.ones(self.wants.size, dtype=np.bool_)
        parts = np.abs(relaxed.shares - np.round(relaxed.shares)) > _WHOLE
        second = np.full(self._number, np.inf)
        not_taken = relaxed.shares < 1.0 - _WHOLE
        np.minimum.at(second, self.wants[not_taken], relaxed.losses[not_taken])
        second[self.wants[parts]] = -1.0
        near = np.argsort(second, kind="stable")[:wants]
        return np.isin(self.wants, near)
