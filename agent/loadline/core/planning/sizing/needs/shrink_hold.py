"""Time for which a pool keeps workers that it does not need, since removing them too early costs more.

Workers that were removed too early are missed for a start-up time, so the first hold is a little longer than that.
When a pool grows again, the late requests may have cost more than the removed workers would have, had the pool kept
them. The hold is then extended to the length of that lull. The next lull may be longer, so the hold is also extended
to the time in which the missing workers cost as much as these requests. That is the break-even rule of the ski rental
problem (Karlin et al., Competitive Snoopy Caching, Algorithmica 1988): a lull and the return after it cost at most
twice what they would if the length of the lull was known. When the kept workers would have cost more, the hold is
shortened. Requests count as late if they arrived beyond what the ready workers serve until the new ones were ready,
unless they were expected when the pool grew.
"""

from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.traffic_totals import thousandths
from loadline.core.fleet.windows import RollingMax
from loadline.core.planning.sizing.need import ROUNDING, whole

_HOLD_MORE_MS: Final = 30_000
"""Hold beyond a start-up time, at first: shorter lulls are chance."""
_HOLD_MAX_MS: Final = 900_000
_WORK_MAX: Final = 1e15
"""Largest work/s that counts: thousandths of it are encoded in 64 bits."""
_SHORTER: Final = 0.7
"""Factor on the hold after a lull in which kept workers would have cost more than the late requests."""


class ShrinkHold(Struct):
    """Highest count that a pool needed lately, and the last shrink below it."""

    needed: RollingMax = field(default_factory=lambda: RollingMax(_HOLD_MORE_MS))
    work: RollingMax = field(default_factory=lambda: RollingMax(_HOLD_MORE_MS))
    """Work/s that these workers served by what was known then, in thousandths; ``_WORK_MAX`` if nothing was."""
    learned_ms: int = 0
    """Hold that lulls have taught, in ms."""
    current: int = 0
    """Count in force at the last update."""
    shrunk_at_ms: int = -1
    """Time of the first scale-down of the lull; -1: none."""
    shrunk_from: int = 0
    """Count before it."""
    lull_since_ms: int = -1
    """Time since which fewer workers were needed."""
    grown_at_ms: int = -1
    """Time of the first scale-up after the lull; -1: none yet."""
    grown_from: int = 0
    """Count before it."""
    grown_to: int = 0
    """Highest count since."""
    ready_at_ms: int = 0
    """Time when its workers are ready, and the lull is judged."""
    waiting: float = 0.0
    """Requests since then beyond what the ready workers serve, less those served later."""
    late_requests_max: float = 0.0
    """Highest number of them."""
    cost_worker_s: float = 0.0
    """Cost of one of them in worker-seconds."""

    def update(self, needed: int, capacity: float, current: int, start_up_ms: int, now: int) -> None:
        """Record the needed count and the one in force; of several scale-downs in a row, the first counts.

        The first count in force is held as if it was needed: what was needed before is unknown.

        Args:
            needed: Count that a shrink may leave now.
            capacity: Work/s of a worker; 0 if unknown.
            current: Count in force.
            start_up_ms: Time until a new worker is ready.
            now: Unix time in ms.
        """
        if not self.current:
            needed = max(needed, current)
        if current < self.current and self.shrunk_at_ms < 0:
            self.shrunk_at_ms, self.shrunk_from = now, self.current
            self.lull_since_ms = now - self.needed.window_ms
        self.current = current
        if self.grown_at_ms >= 0 and now >= self.ready_at_ms:
            self._learn()
        self.needed.window_ms = self.work.window_ms = max(start_up_ms + _HOLD_MORE_MS, self.learned_ms)
        self.needed.push(now, needed)
        self.work.push(now, _work(needed, capacity or _WORK_MAX))
        self.work.max(now)  # forget older values: a capacity that falls would add one each second

    def held(self, capacity: float, now: int) -> int:
        """Return the highest count that was needed within the hold, but no more than do its work by what is known now.

        Args:
            capacity: Work/s of a worker; above 0.
            now: Unix time in ms.
        """
        needed, done = self.needed.max(now) or 0, (self.work.max(now) or 0) / 1_000.0
        return needed if done >= needed * capacity else whole(done / capacity)

    def left_ms(self, count: int, capacity: float, now: int) -> int:
        """Return the time for which a count is held that is at most the held one, by what a worker serves now."""
        work_min = _work(count - 1 + ROUNDING, capacity)
        return min(self.needed.falls_below_ms(count, now), self.work.falls_below_ms(work_min, now)) - now

    def record_growth(self, wanted: int, cost_worker_s: float, start_up_ms: int, now: int) -> None:
        """Learn from a scale-up after a scale-down, once its workers are ready: the load may still rise until then.

        Args:
            wanted: Count after the scale-up.
            cost_worker_s: Cost of a late request in worker-seconds.
            start_up_ms: Time until the workers are ready.
            now: Unix time in ms.
        """
        if self.shrunk_at_ms < 0:
            return
        if self.grown_at_ms < 0:
            self.grown_at_ms, self.grown_from, self.ready_at_ms = now, self.current, now + start_up_ms
            self.waiting, self.late_requests_max, self.grown_to = 0.0, 0.0, 0
        self.cost_worker_s, self.grown_to = cost_worker_s, max(self.grown_to, wanted)

    def record_excess(self, requests: float) -> None:
        """Record the arrivals of a sample less the requests that the ready workers serve in its time."""
        if self.grown_at_ms >= 0:
            self.waiting = max(0.0, self.waiting + requests)
            self.late_requests_max = max(self.late_requests_max, self.waiting)

    def _learn(self) -> None:
        """Compare what the last lull has cost with what it has saved."""
        idle = min(self.shrunk_from, self.grown_to) - self.grown_from
        saved_worker_s = idle * (self.grown_at_ms - self.shrunk_at_ms) / 1_000.0
        lost_worker_s = self.late_requests_max * self.cost_worker_s
        if lost_worker_s > saved_worker_s:
            even_ms = int(1_000.0 * lost_worker_s / (self.grown_to - self.grown_from))
            lull_ms = self.grown_at_ms - self.lull_since_ms
            self.learned_ms = min(_HOLD_MAX_MS, max(self.learned_ms, lull_ms, even_ms))
        else:
            self.learned_ms = int(self.learned_ms * _SHORTER)
        self.shrunk_at_ms = self.grown_at_ms = -1


def _work(workers: float, capacity: float) -> int:
    """Return the work/s of some workers, in thousandths."""
    return thousandths(min(workers * capacity, _WORK_MAX))
