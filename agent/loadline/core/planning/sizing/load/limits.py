"""Load limits of the workers of a pool by the load planner, and the workers that their load needs.

After a worker is removed, the others share its KV blocks, whose number hardly changes. A prefill queue is short until
it is suddenly long, so a pool that scales by it alone oscillates. Prefill therefore scales down by the number of
workers that compute.
"""

from math import ceil, inf
from typing import Final, Literal

from msgspec import Struct

from loadline.core.engines.regression import Regression
from loadline.core.planning.sizing.erlang import workers_within
from loadline.core.planning.sizing.load.steps import can_consolidate, load_after_removal, load_step
from loadline.core.planning.sizing.load.worker_loads import LONG_MEAN_MS, LoadMean

_CONTINUED_RISE: Final = 0.5
"""Fraction of the last minute's rise that is expected to continue; the other half of a fast rise is noise."""
_EXPECTED_MAX: Final = 2.0
"""Largest expected load, as a multiple of the limit: a step at most doubles a pool."""
_SCALE_DOWN_MARGIN: Final = 1.2
"""Factor on loads in the check of a removal: some hundred requests vary by a fifth within minutes, and a worker that
is only just superfluous would be started again at once."""
_ATTAINMENT: Final = 0.95
"""Fraction of prompts within SLO."""
_MISSED_FACTOR: Final = 2.0
"""Latency after a removal, over that without load, if the objective is below the latter: as ``auto`` sizes for it."""
_DIGITS: Final = 1
"""Digits of latencies that are only shown."""

Removal = Literal["no", "refused", "yes"]
"""Result of the check of a removal; refused: loads are low enough, but the others would miss the objective."""


class LoadLimits(Struct, frozen=True):
    """Loads around the one at which a regression reaches an objective."""

    up: float
    """Load above which a worker misses its objective."""
    down: float
    """Load up to which a worker meets its objective, or has room if it meets it at no load; not above 0: none."""
    latency_ms: float
    """Latency at ``up``."""
    missed_ms: float | None = None
    """Latency without other load if that exceeds the objective; None: the objective can be met."""


class DecodeWork(Struct, frozen=True):
    """Decode of a pool: KV blocks in use, and ITL."""

    loads: list[LoadMean]
    """Known loads of the workers; at least one."""
    regression: Regression
    """From load to latency."""
    objective_ms: float
    sensitivity: float
    """Fraction of the limit with one worker fewer that loads must stay below for a removal."""
    scale: float
    """Number of workers per known load."""
    load_max: float = inf
    """Largest load of a worker at any latency."""
    own_load: float = 0.0
    """Load of the request itself, which is not part of the loads."""

    @property
    def is_idle(self) -> bool:
        """True if there is no work, and has not been for a while."""
        return all(load.now == 0.0 and load.long_mean < 1.0 for load in self.loads)

    @property
    def highest(self) -> float:
        """Load that is compared with the limit of a removal: the highest of a worker."""
        return max(max(load.mean, load.long_mean) for load in self.loads)

    def limits(self) -> LoadLimits | None:
        """Return the load limits by the regression; None while there is none."""
        line = self.regression.line()
        if line is None:
            return None
        if line.slope > 0.0:
            target = (self.regression.load_at(self.objective_ms) or 0.0) - self.own_load
            if 0.0 < target <= self.load_max:
                return LoadLimits(target, target, self.objective_ms)
        else:
            samples = zip(self.regression.loads, self.regression.latencies_ms, strict=True)
            within = [load for load, ms in samples if ms < self.objective_ms]
            # These loads include the request itself: without it, a pool whose prompts never wait had a limit of 0.
            target = max(within, default=0.0)
        best_ms = round(line.at(self.own_load), _DIGITS)
        if self.load_max == inf and target > 0.0:
            return LoadLimits(inf, target, best_ms)
        if self.load_max == inf:  # without work no worker is needed, whatever the objective
            return LoadLimits(inf, 1.0 if self.is_idle else 0.0, best_ms, best_ms)
        latency_ms = round(line.at(self.load_max), _DIGITS)
        if target > 0.0:
            return LoadLimits(self.load_max, min(target, self.load_max), latency_ms)
        # While all loads were alike, the line is flat and says nothing of the latency after a removal.
        down = self.load_max if line.slope > 0.0 or self.is_idle else 0.0
        return LoadLimits(self.load_max, down, latency_ms, best_ms)

    def expected(self, up: float) -> list[float]:
        """Return the expected load of each worker; the trend is that of the pool, as workers come and go."""
        mean, long_mean = (sum(loads) for loads in zip(*((one.mean, one.long_mean) for one in self.loads), strict=True))
        rise = 1.0 + _CONTINUED_RISE * max(0.0, 1.0 - long_mean / mean) if mean > 0.0 else 1.0
        return [max(load.high, min(load.high * rise, _EXPECTED_MAX * up)) for load in self.loads]

    def needed(self, up: float) -> int:
        """Return the number of workers with which none exceeds the load limit."""
        return ceil(sum(self.expected(up)) * self.scale / up)

    def removal_limit(self, down: float) -> float:
        """Return the load of a worker below which one can be removed."""
        count = len(self.loads)
        return down * (count - 1) / count * self.sensitivity

    def removal(self, limits: LoadLimits) -> Removal:
        """Check the removal of one worker; requests stay longer as they become slower.

        If the objective is missed without load, the others may take twice the latency without load.
        """
        loads, count = [max(load.mean, load.long_mean) for load in self.loads], len(self.loads)
        if load_step(loads, limits.down, self.sensitivity) >= 0:
            return "no"
        line = self.regression.line()
        if self.is_idle or line is None:
            return "yes"
        after = [load_after_removal(load * _SCALE_DOWN_MARGIN, count, line) * (count - 1) / count for load in loads]
        objective_ms = self.objective_ms if limits.missed_ms is None else _MISSED_FACTOR * limits.missed_ms
        fits = can_consolidate(after, line.at, objective_ms, self.sensitivity, self.load_max * self.sensitivity)
        return "yes" if fits else "refused"


class PrefillWork(DecodeWork, frozen=True, kw_only=True):
    """Prefill of a pool: prompt tokens, and TTFT."""

    computing: list[LoadMean]
    """For each worker, 1 while it computes prompts, otherwise 0."""

    def needed(self, up: float) -> int:  # noqa: ARG002 - a queue counts by the time that it takes
        """Return the number of workers with which prompts are within SLO: for those that compute, and queue growth."""
        mean, long_mean = (sum(loads) for loads in zip(*((one.mean, one.long_mean) for one in self.loads), strict=True))
        line = self.regression.line()
        growth = max(0.0, mean - long_mean) / LONG_MEAN_MS * line.slope if line is not None else 0.0
        return self._workers_within_slo(growth, 1.0)

    @property
    def highest(self) -> float:
        """Load that is compared with the limit of a removal: the mean, as one long prompt keeps one worker busy."""
        return sum(load.long_mean for load in self.loads) / len(self.loads)

    def removal(self, limits: LoadLimits) -> Removal:
        """Check the removal of one worker."""
        count = len(self.loads)
        if count < 2 or not self.highest < self.removal_limit(limits.down):  # noqa: PLR2004 - the last worker stays
            return "no"
        return "yes" if self.is_idle or self._workers_within_slo(0.0, self.sensitivity) < count else "refused"

    def _workers_within_slo(self, added_busy: float, sensitivity: float) -> int:
        """Return the workers by Erlang's formula, for those that compute, divided by the sensitivity, and for more."""
        line = self.regression.line()
        own_ms = 0.0 if line is None else line.at(self.own_load)
        busy = (sum(load.long_mean for load in self.computing) / sensitivity + added_busy) * self.scale
        # If a prompt alone misses the objective, there must still be enough workers for a finite queue.
        waits = [(self.objective_ms - own_ms, 1.0)]
        return workers_within(busy, own_ms, waits, _ATTAINMENT, 1.0) or ceil(busy) + 1
