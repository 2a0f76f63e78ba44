"""Trial of a shrink to a load that was not seen yet, once the kept worker has cost as much as the risk of a failure.

Two workers of which each has a light load prove half of the load that one would have, and a steady load proves no
more. A shrink that fails makes all requests late for a start-up time, so the worker is kept until it has idled for as
long as the risk is worth: the break-even rule by which ``ShrinkHold`` keeps workers in a lull, too.
"""

from typing import Final

from msgspec import Struct

from loadline.core.planning.sizing.needs.reversed_shrink import SOON_MS

_RISK: Final = 0.25
"""Probability of a failure before any; 1 of 23 trials of one worker instead of two failed, near its limit."""
_FAILURES_MAX: Final = 6
_WAIT_MAX_S: Final = 86_400.0


class UnprovenShrink(Struct):
    """Time for which a pool was kept for want of a proof alone, and the trials that have failed."""

    replicas: int = 0
    """Count that is kept."""
    since_ms: int = -1
    """Time since which nothing else has kept it; -1: something does."""
    tried_at_ms: int = -1
    """Time at which a trial was last recommended; -1: never, or the pool has grown since."""
    tried_from: int = 0
    """Count in force then."""
    failures: int = 0
    """Trials that have failed: each doubles the time until the next one."""

    def left_ms(self, replicas: int, failure_worker_s: float, now: int) -> int:
        """Return the time until a trial; 0: it is due, and stays so until the count changes, as guardrails may hold it.

        Args:
            replicas: Count in force.
            failure_worker_s: Cost of a failure in worker-seconds.
            now: Unix time in ms.
        """
        if self.since_ms < 0 or replicas != self.replicas:
            self.since_ms, self.replicas = now, replicas
        needed_s = min(_WAIT_MAX_S, _RISK * failure_worker_s * 2**self.failures)
        return max(0, self.since_ms + int(1_000.0 * needed_s) - now)

    def forget(self) -> None:
        """Record that something else keeps the pool."""
        self.since_ms = -1

    def record_trial(self, replicas: int, now: int) -> None:
        """Record that a trial was recommended for a count in force."""
        self.tried_at_ms, self.tried_from = now, replicas

    def record_growth(self, replicas: int, now: int) -> None:
        """Record a growth from a count in force: the trial that has led to this count a short time ago has failed."""
        is_soon = 0 <= self.tried_at_ms <= now <= self.tried_at_ms + SOON_MS
        if is_soon and replicas < self.tried_from:
            self.failures = min(_FAILURES_MAX, self.failures + 1)
        self.since_ms = self.tried_at_ms = -1
