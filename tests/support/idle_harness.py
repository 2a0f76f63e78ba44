"""Model ``m`` with frontends, for tests of scale to zero."""

from collections.abc import Sequence

import msgspec

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import Bound
from loadline.core.planning.scale_to_zero import IdleTracker
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.fleet_harness import FleetHarness

AFTER_MS = 60_000
"""Idle time before a scale to zero."""


def traffic(sequence: int, frontend: str = "f", **fields: int) -> TrafficReported:
    """Return a report of one second of a frontend; all counts but the given ones are 0."""
    sample = msgspec.convert({"sequence": sequence, "interval_ms": 1_000, "arrivals": 0} | fields, TrafficSample)
    return TrafficReported("m", frontend, 1, sample)


class IdleHarness(FleetHarness):
    """Model whose time advances by a second with every report."""

    def __init__(self, *pools: PoolKnobs, workers: int = 1, after_ms: int = AFTER_MS) -> None:
        super().__init__(pools, workers)
        self.idle = IdleTracker()
        self.after_ms = after_ms
        for pool in pools:
            self.pool(pool.name).decided = workers

    def report_traffic(self, seconds: int = 1, frontends: Sequence[str] = ("f",), **fields: int) -> None:
        """Repeat the same reports of frontends and workers for some seconds."""
        for _ in range(seconds):
            self.now += 1_000
            for frontend in frontends:
                self.model.traffic.ingest(traffic(self.now // 1_000, frontend, **fields), self.now)
            for pool in self.model.pools:
                self.report(pool, running=0)
            self.idle.observe(self.refresh(), self.now)

    def bounds(self, **proposed: int) -> dict[str, Bound]:
        """Return the current bounds of the pools."""
        return self.idle.bounds(self.refresh(), proposed, self.after_ms, self.now)

    def bounded_counts(self, **proposed: int) -> dict[str, int]:
        """Return the counts of a proposal within the current bounds."""
        counts = {name: proposed.get(name, pool.effective_target(self.now)) for name, pool in self.model.pools.items()}
        for name, bound in self.bounds(**proposed).items():
            counts[name] = min(max(counts[name], bound.minimum), bound.maximum)
        return counts
