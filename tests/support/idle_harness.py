"""Model ``m`` with frontends that a test lets speak, as whoever decides on its sleep sees it."""

from collections.abc import Sequence

import msgspec

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import Bound
from loadline.core.planning.scale_to_zero import IdleTracker
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.fleet_harness import FleetHarness

AFTER_MS = 60_000
"""How long it has nothing to do before it falls asleep."""


def traffic(sequence: int, frontend: str = "f", **said: int) -> TrafficReported:
    """A second of a frontend, in which nothing happened but what is said."""
    sample = msgspec.convert({"sequence": sequence, "interval_ms": 1_000, "arrivals": 0} | said, TrafficSample)
    return TrafficReported("m", frontend, 1, sample)


class IdleHarness(FleetHarness):
    """Time goes on by a second with every report."""

    def __init__(self, *pools: PoolKnobs, workers: int = 1, after_ms: int = AFTER_MS) -> None:
        super().__init__(pools, workers)
        self.idle = IdleTracker()
        self.after_ms = after_ms
        for pool in pools:
            self.pool(pool.name).desired = workers

    def report_traffic(self, seconds: int = 1, frontends: Sequence[str] = ("f",), **said: int) -> None:
        """The frontends and all workers say the same for so many seconds."""
        for _ in range(seconds):
            self.now += 1_000
            for frontend in frontends:
                self.model.traffic.ingest(traffic(self.now // 1_000, frontend, **said), self.now)
            for pool in self.model.pools:
                self.report(pool, running=0)
            self.idle.observe(self.refresh(), self.now)

    def bounds(self, **proposed: int) -> dict[str, Bound]:
        """What the pools are kept to at this moment."""
        return self.idle.bounds(self.refresh(), proposed, self.after_ms, self.now)

    def bounded_counts(self, **proposed: int) -> dict[str, int]:
        """The counts that come of a proposal."""
        counts = {name: proposed.get(name, pool.effective_target(self.now)) for name, pool in self.model.pools.items()}
        for name, bound in self.bounds(**proposed).items():
            counts[name] = min(max(counts[name], bound.minimum), bound.maximum)
        return counts
