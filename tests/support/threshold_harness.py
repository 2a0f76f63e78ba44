"""Pools of workers with a threshold planner."""

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs, ThresholdPlanner
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from tests.support.fleet_harness import FleetHarness

PREFILL = PoolKnobs("prefill", "prefill", start_deadline_ms=60_000)
DECODE = PoolKnobs("decode", "decode", start_deadline_ms=60_000)
BOTH = PoolKnobs("agg", "aggregated")
PULL_MS = 1_000
INTERVAL_MS = 30_000


class ThresholdHarness(FleetHarness):
    """Pools of workers with a planner; time advances by a second per evaluation."""

    def __init__(self, *pools: PoolKnobs, workers: int = 2, **knobs: float) -> None:
        super().__init__(pools, workers)
        self.planner = ThresholdPlanner(ThresholdKnobs(**knobs))  # type: ignore[arg-type]
        self.queue = 0
        self.kv = 0.7
        self.running = 1
        self.silent = 0

    def report_and_plan(self) -> Recommendation:
        for name, pool in self.model.pools.items():
            waiting = self.queue if pool.knobs.role != "decode" else 0
            self.report(name, self.kv, waiting, self.running, self.silent)
        return self.plan()

    def plan(self) -> Recommendation:
        return self.planner.plan(self.refresh(), self.now)

    def run(self, seconds: int) -> Recommendation:
        """Evaluate now, and then once per second."""
        recommendation = self.report_and_plan()
        for _ in range(seconds):
            self.now += PULL_MS
            recommendation = self.report_and_plan()
        return recommendation

    def follow(self, *values: float) -> Recommendation:
        """Evaluate with one value per second: queue length (whole numbers) or KV usage."""
        recommendation = Recommendation("", {}, (), {})
        for number, value in enumerate(values):
            self.now += PULL_MS if number else 0
            self.queue, self.kv = int(value), min(1.0, float(value))
            recommendation = self.report_and_plan()
        return recommendation


def prefill(**knobs: float) -> ThresholdHarness:
    return ThresholdHarness(PREFILL, workers=2, **knobs)


def decode(**knobs: float) -> ThresholdHarness:
    return ThresholdHarness(DECODE, workers=2, **knobs)


def reason(recommendation: Recommendation, pool: str) -> Reason:
    (found,) = [r for r in recommendation.reasons if r.pool == pool]
    return found


def codes(recommendation: Recommendation) -> set[ReasonCode]:
    return {r.code for r in recommendation.reasons}
