"""The throughput planner: forecasts the traffic and sizes pools by the profiles of their engines.

It takes the five steps of Dynamo's planner. Every ``throughput_adjustment_interval_ms`` it records the traffic of the
interval, corrects the profiles (off by default) and requests forecasts of requests and lengths. As often as workers
start it sizes each pool for the busiest interval until those of the next sizing are ready. Differences:

- It starts after a few seconds of traffic, and sizes at once when more arrives than the pools are sized for.
- A shrink leaves 10 % headroom, waits as long as workers take to start, and waits for frontends that stopped reporting.
- No requests are a load of 0; frontends that do not report are a hold.
- A forecast changes a pool by at most ``replicas_step_max`` in all; measured traffic may change it further.
"""

from collections.abc import Iterator

from msgspec import field
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.demand.checks import traffic_findings
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.planner import Finding, ModelSettings, Needs
from loadline.core.planning.recommendation import PoolRecommendation, hold_after_peak, recommend, recommend_size
from loadline.core.planning.sizing.descriptions import describe_throughput
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.planning.sizing.profile_sizer import ProfileSizer
from loadline.core.planning.traffic_planner import TrafficPlanner
from loadline.core.vocabulary.reasons import Recommendation


class ThroughputPlanner(TrafficPlanner):
    """Demand -> profile sizes -> recommendation."""

    name = "throughput"
    summary = "Dynamo's throughput planner: forecasts the traffic and sizes each pool by engine profiles."
    Knobs = ThroughputKnobs
    needs = Needs(
        traffic=True,
        history=True,
        profiles="required",
        objectives=frozenset({"ttft_ms", "itl_ms"}),
        shares_role_load=True,
    )

    knobs: ThroughputKnobs
    sizer: ProfileSizer = field(default_factory=ProfileSizer)

    @classmethod
    def check(cls, knobs: ThroughputKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield windows and seasons that have no effect."""
        yield from traffic_findings(knobs, model, place)

    @classmethod
    def describe(cls, knobs: ThroughputKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the objective that a pool is sized for, and how often."""
        yield describe_throughput(knobs, model.objectives, pool)

    @classmethod
    def traffic_knobs(cls, knobs: ThroughputKnobs) -> TrafficKnobs:
        """Return its own knobs: they include those."""
        return knobs

    def forget_pool(self, pool: str) -> None:
        """Drop its size."""
        self.sizer.sizes.forget_pool(pool)

    def export_learned(self) -> bytes | None:
        """Return how the engines differ from their profiles."""
        return self.sizer.export_learned(self.knobs)

    def import_learned(self, data: bytes) -> None:
        """Correct the profiles from the first sizing on."""
        self.sizer.import_learned(data, self.knobs)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Size the pools if that is due, and recommend their sizes."""
        self.sizer.apply(self.demand.update(model, self.knobs, now), model, self.knobs, now)
        pools = {pool.name: self._recommend(model, pool, now) for pool in model.pools.values()}
        found = recommend(self.name, model, pools, self.demand.inputs, now)
        notes = (*self.demand.forecast.notes, *self.sizer.sizes.infeasible.values())
        return replace(found, reasons=(*found.reasons, *notes))

    def _recommend(self, model: Model, pool: Pool, now: int) -> PoolRecommendation:
        reason = self.sizer.hold_reason(model, pool, now)
        if reason is not None:
            return PoolRecommendation(None, (reason,))
        size, window_ms = self.sizer.sizes.sized[pool.name], self.knobs.surge_window_ms
        if size.replicas > pool.effective_target(now) and self.demand.is_peak_over(model, window_ms, now):
            return hold_after_peak(size, pool, window_ms, now)
        return recommend_size(size, model, pool, pool.start_up_ms(self.knobs.start_up_ms), now)
