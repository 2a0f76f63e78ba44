"""Throughput planner: forecasts the traffic and sizes pools by the profiles of their engines.

The steps are those of Dynamo's planner. Every ``throughput_adjustment_interval_ms`` it records the traffic of the
interval, corrects the profiles (off by default) and requests forecasts of requests and lengths. Once per start-up time
it sizes each pool for the busiest interval until the workers of the next sizing are ready. Differences from Dynamo:

- It sizes after a few seconds of traffic, and again as soon as traffic exceeds the load that pools are sized for.
- A scale-down leaves 10 % headroom, waits for one start-up time, and waits while a frontend does not report.
- No requests are a load of 0; without reports of frontends the pools are held.
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
from loadline.core.planning.sizing.profile.sizer import ProfileSizer
from loadline.core.planning.traffic_planner import TrafficPlanner
from loadline.core.vocabulary.reasons import Recommendation
from loadline.core.vocabulary.status import Estimates


class ThroughputPlanner(TrafficPlanner):
    """Planner that composes a demand tracker and a profile sizer."""

    name = "throughput"
    summary = "Dynamo's throughput planner: forecasts the traffic and sizes each pool by engine profiles."
    group = "compatible"
    Knobs = ThroughputKnobs
    needs = Needs(
        traffic="required",
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
        """Yield the objective and the interval of the sizing of a pool."""
        yield describe_throughput(knobs, model.objectives, pool)

    @classmethod
    def traffic_knobs(cls, knobs: ThroughputKnobs) -> TrafficKnobs:
        """Return the knobs themselves, which include those of traffic."""
        return knobs

    def forget_pool(self, pool: str) -> None:
        """Discard the size of a pool."""
        self.sizer.sizes.forget_pool(pool)

    def export_learned(self) -> bytes | None:
        """Return the correction factors of the profiles."""
        return self.sizer.export_learned(self.knobs)

    def import_learned(self, data: bytes) -> None:
        """Use correction factors from the first sizing on."""
        self.sizer.import_learned(data, self.knobs)

    def estimates(self, model: Model) -> Estimates:  # noqa: ARG002 - an interface
        """Return the forecast and the correction factors."""
        return Estimates(self.demand.record.status(), self.sizer.corrections(self.knobs))

    def plan(self, model: Model, now: int) -> Recommendation:
        """Size the pools if a sizing is due, and recommend their sizes."""
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
            return hold_after_peak(size, pool, window_ms, self.demand.next_sizing_ms, now)
        start_up_ms = pool.start_up_ms(self.knobs.start_up_ms)
        return recommend_size(size, model, pool, start_up_ms, self.demand.next_sizing_ms, now)
