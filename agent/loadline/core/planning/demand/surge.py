"""The traffic that pools are sized for, compared with the traffic of the last seconds."""

from msgspec import Struct

from loadline.core.engines.lengths import LengthDistribution
from loadline.core.fleet.traffic import BUCKET_MS, RecentArrivals, Traffic
from loadline.core.planning.demand.outlook import Outlook


class SurgeDetector(Struct):
    """The outlook of the last sizing, and whether traffic exceeds it."""

    outlook: Outlook | None = None
    """Traffic that the pools are sized for; None before the first sizing."""
    sized_ms: int = -1
    """Time of the last sizing; -1 before the first."""
    isl_spread: float = 1.0
    """``1 + cv^2`` of the prompt lengths: sums of lengths vary that much more than counts."""

    def record_sizing(self, outlook: Outlook, isl: LengthDistribution | None, now: int) -> None:
        """Note that the pools are sized for this outlook; prompt lengths may be unknown."""
        self.outlook, self.sized_ms = outlook, now
        if isl is not None:
            self.isl_spread = isl.mean_square / max(isl.mean, 1.0) ** 2

    def is_surge(self, traffic: Traffic, window_ms: int, now: int, *, is_first_interval: bool) -> bool:
        """Return whether pools are not sized yet, or traffic exceeds what they are sized for beyond chance."""
        recent = traffic.recent_arrivals(window_ms, now)
        if not covers(recent, window_ms):
            return False
        if self.outlook is None or self.outlook.is_exceeded_by(recent, self.isl_spread):
            return True
        # Before the first interval ends, the lengths of outputs are unknown: more of them finish every few seconds.
        return is_first_interval and now - self.sized_ms >= window_ms


def covers(recent: RecentArrivals, window_ms: int) -> bool:
    """Return whether traffic was observed for all of a window, but for a bucket: less gives no rate."""
    return recent.observed_ms >= window_ms - BUCKET_MS
