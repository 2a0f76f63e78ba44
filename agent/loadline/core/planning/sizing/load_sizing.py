"""What the workers of a pool do, as the load planner weighs it: their loads, and how many workers these need.

KV blocks that one worker less would hold are shared by the others, and stay about as many. A prefill queue is short
until it is long: a pool that is judged by it alone swings. So prefill shrinks by how many of its workers compute.
"""

from math import ceil, inf
from typing import Final, Literal

from msgspec import Struct

from loadline.core.engines.regression import Regression
from loadline.core.planning.sizing.erlang import workers_within
from loadline.core.planning.sizing.load_steps import can_consolidate, load_of_less, load_step
from loadline.core.planning.sizing.worker_loads import CALM_MS, LoadMean

_GOES_ON: Final = 0.5
"""Of the rise of the last minute so much is expected to go on: the other half of a fast rise is noise."""
_RISE_MAX: Final = 2.0
"""Expected loads are at most so many times what meets the objective: by them a pool grows to its double at most."""
_SPARE: Final = 1.2
"""The others must keep the time with a fifth more than there is: some hundred requests swing by as much within minutes,
and where one less only just does its place is taken again at once."""
_IN_TIME: Final = 0.95
"""Share of the prompts that is to be in time."""

Less = Literal["no", "refused", "yes"]
"""Whether one worker less would do; refused: by what each has it would, but the others would miss the objective."""


class LatencyLine(Struct, frozen=True):
    """What a regression says of an objective."""

    up: float
    """Above this load a worker misses its objective."""
    down: float
    """Up to this load a worker meets it."""


class Job(Struct, frozen=True):
    """Decode, by KV blocks and ITL."""

    values: list[LoadMean]
    """The known loads of the workers; there is at least one."""
    regression: Regression
    """From load to latency."""
    sla_ms: float
    sensitivity: float
    """How far below what one worker less would bear loads must be for it."""
    scale: float
    """Workers for each one whose load is known."""
    capacity: float = inf
    """Load that a worker may have, whatever the latency."""
    own: float = 0.0
    """Load that a request is itself, which the others have not got."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, and has not been for a while."""
        return all(value.now == 0.0 and value.calm < 1.0 for value in self.values)

    @property
    def most(self) -> float:
        """The load that is held against a lower bound: the highest of a worker."""
        return max(max(value.mean, value.calm) for value in self.values)

    def line(self) -> LatencyLine | None:
        """What the regression says of the objective; None before there is one."""
        fitted = self.regression.line()
        if fitted is None:
            return None
        if fitted.slope > 0.0:
            target = min((self.regression.load_at(self.sla_ms) or 0.0) - self.own, self.capacity)
            return LatencyLine(target if target > 0.0 else inf, target)
        samples = zip(self.regression.loads, self.regression.latencies_ms, strict=True)
        fine = [load for load, ms in samples if ms < self.sla_ms]
        return LatencyLine(self.capacity, min(max(fine, default=0.0) - self.own, self.capacity))

    def expected(self, up: float) -> list[float]:
        """The load of each worker, as that of the pool rises: workers come and go, their sum does not."""
        mean, calm = (sum(loads) for loads in zip(*((one.mean, one.calm) for one in self.values), strict=True))
        rise = 1.0 + _GOES_ON * max(0.0, 1.0 - calm / mean) if mean > 0.0 else 1.0
        return [max(value.high, min(value.high * rise, _RISE_MAX * up)) for value in self.values]

    def needed(self, up: float) -> int:
        """Workers of which each has no more than meets the objective."""
        return ceil(sum(self.expected(up)) * self.scale / up)

    def bound(self, down: float) -> float:
        """The load of a worker below which one worker less would do."""
        count = len(self.values)
        return down * (count - 1) / count * self.sensitivity

    def less(self, down: float) -> Less:
        """Whether one worker less would do: it holds requests the longer, the slower they become."""
        loads, count = [max(value.mean, value.calm) for value in self.values], len(self.values)
        if load_step(loads, down, self.sensitivity) >= 0:
            return "no"
        fitted = self.regression.line()
        if self.idle or fitted is None:
            return "yes"
        after = [load_of_less(load * _SPARE, count, fitted) * (count - 1) / count for load in loads]
        fits = can_consolidate(after, fitted.at, self.sla_ms, self.sensitivity, self.capacity * self.sensitivity)
        return "yes" if fits else "refused"


class PrefillJob(Job, frozen=True, kw_only=True):
    """Prefill, by prompt tokens and TTFT."""

    computing: list[LoadMean]
    """Of each worker, whether it computes prompts: 1 or 0."""

    def needed(self, up: float) -> int:  # noqa: ARG002 - a queue is as long as it is late
        """Workers with which prompts are in time: those that compute, and those for what the queues grow by."""
        mean, calm = (sum(loads) for loads in zip(*((one.mean, one.calm) for one in self.values), strict=True))
        fitted = self.regression.line()
        grows = max(0.0, mean - calm) / CALM_MS * fitted.slope if fitted is not None else 0.0
        return self._in_time(grows, 1.0)

    @property
    def most(self) -> float:
        """The mean over all workers: one long prompt keeps one of them busy."""
        return sum(value.calm for value in self.values) / len(self.values)

    def less(self, down: float) -> Less:
        """Whether one worker less would do."""
        count = len(self.values)
        if count < 2 or not self.most < self.bound(down):  # noqa: PLR2004 - the last worker stays
            return "no"
        return "yes" if self.idle or self._in_time(0.0, self.sensitivity) < count else "refused"

    def _in_time(self, more: float, sensitivity: float) -> int:
        """Workers for those that compute, by the sensitivity, and so many more; by Erlang's formula."""
        fitted = self.regression.line()
        own_ms = 0.0 if fitted is None else fitted.at(self.own)
        busy = (sum(one.calm for one in self.computing) / sensitivity + more) * self.scale
        # Where prompts are late even alone, there are to be enough that they do not queue for ever.
        return workers_within(busy, own_ms, [(self.sla_ms - own_ms, 1.0)], _IN_TIME, 1.0) or ceil(busy) + 1
