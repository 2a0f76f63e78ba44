"""Comparison of recent traffic with the traffic that pools are sized for."""

from msgspec import Struct

from loadline.core.engines.lengths import LengthDistribution
from loadline.core.fleet.traffic import RecentArrivals, Traffic
from loadline.core.fleet.traffic_buckets import BUCKET_MS
from loadline.core.planning.demand.outlook import Outlook


class SurgeDetector(Struct):
    """Detector of traffic above the outlook of the last sizing."""

    outlook: Outlook | None = None
    """Traffic that the pools are sized for; None before the first sizing."""
    sized_ms: int = -1
    """Time of the last sizing; -1 before the first."""
    isl_spread: float = 1.0
    """``1 + cv^2`` of the prompt lengths: the variance of their sum relative to that of their number."""

    def record_sizing(self, outlook: Outlook, isl: LengthDistribution | None, now: int) -> None:
        """Record the outlook that the pools are sized for.

        Args:
            outlook: The outlook.
            isl: Distribution of the prompt lengths; None if unknown.
            now: Unix time in ms.
        """
        self.outlook, self.sized_ms = outlook, now
        if isl is not None:
            self.isl_spread = isl.mean_square / max(isl.mean, 1.0) ** 2

    def is_surge(self, traffic: Traffic, window_ms: int, now: int, *, is_first_interval: bool) -> bool:
        """Return True if traffic significantly exceeds the last outlook, or there was no sizing yet."""
        recent = traffic.recent_arrivals(window_ms, now)
        if not covers(recent, window_ms):
            return False
        if self.outlook is None or self.outlook.is_exceeded_by(recent, self.isl_spread):
            return True
        # Before the end of the first interval, output lengths become known bit by bit as requests finish.
        return is_first_interval and now - self.sized_ms >= window_ms


def covers(recent: RecentArrivals, window_ms: int) -> bool:
    """Return True if traffic was observed over a whole window, except for one bucket; otherwise it gives no rate."""
    return recent.observed_ms >= window_ms - BUCKET_MS
