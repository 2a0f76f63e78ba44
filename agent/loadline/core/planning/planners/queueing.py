"""The queueing planner: sizes pools to serve the expected requests within their objectives, by a queueing model.

It is the model-based path of llm-d's Workload Variant Autoscaler, with the demand of the throughput planner: traffic
that is forecast until workers are ready. A queueing model gives the rate that one worker of each pool serves within
TTFT and ITL. Differences from the original:

- Demand is what arrives and what waits, not what completes, which is never more than the workers can do.
- The objectives are those of a fraction of the requests, not of their mean.
- The pools of a role share its demand; there, each is sized for all of it.
- A pool grows in one step, and shrinks after no sizing has needed its workers for as long as workers take to start.
- A pool that others replace shrinks as those become ready.
- Engines without a profile are fitted to the iterations that their workers report.
"""

from collections.abc import Iterator

from msgspec import field
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingMax
from loadline.core.planning.allocation.replacement_minimums import replacement_minimums
from loadline.core.planning.demand.checks import traffic_findings
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.planner import Finding, ModelSettings, Needs
from loadline.core.planning.recommendation import PoolRecommendation, hold_after_peak, recommend, recommend_size
from loadline.core.planning.sizing.descriptions import describe_throughput
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.planning.sizing.queue_sizer import QueueSizer
from loadline.core.planning.traffic_planner import TrafficPlanner
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand


class QueueingPlanner(TrafficPlanner):
    """Demand and backlog -> queueing sizes -> recommendation."""

    name = "queueing"
    summary = "Forecasts the traffic and sizes each role at least cost by a queueing model of its engines."
    Knobs = QueueingKnobs
    needs = Needs(
        traffic=True,
        history=True,
        profiles="optional",
        objectives=frozenset({"ttft_ms", "itl_ms", "tokens_per_s", "attainment"}),
        shares_role_load=True,
    )

    knobs: QueueingKnobs
    sizer: QueueSizer = field(default_factory=QueueSizer)
    short_at_ms: int = 0
    """Earliest time at which a backlog alone may size the pools again."""
    highest: dict[str, RollingMax] = field(default_factory=dict)
    """Highest size of each pool over a start-up."""

    @classmethod
    def check(cls, knobs: QueueingKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield windows and seasons that have no effect."""
        yield from traffic_findings(knobs, model, place)

    @classmethod
    def describe(cls, knobs: QueueingKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the objective that a pool is sized for, how often, and the treatment of a backlog."""
        yield describe_throughput(knobs, model.objectives, pool)
        yield (
            "Chooses the cheapest mix of the pools of a role, with enough workers to serve a backlog within "
            f"{duration(knobs.drain_ms)}."
        )

    @classmethod
    def traffic_knobs(cls, knobs: QueueingKnobs) -> TrafficKnobs:
        """Return its own knobs: they include those."""
        return knobs

    def forget_pool(self, pool: str) -> None:
        """Drop its size and what was learned of its engines; it serves no demand any more."""
        self.sizer.forget_pool(pool)
        self.highest.pop(pool, None)

    def export_learned(self) -> bytes | None:
        """Return the times of the engines, and how they differ from their profiles."""
        return self.sizer.export_learned(self.knobs)

    def import_learned(self, data: bytes) -> None:
        """Use them until iterations show others."""
        self.sizer.import_learned(data, self.knobs)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Size the pools if that is due, and recommend their sizes and the demand of each role."""
        self._update(model, now)
        peak_over = self._is_peak_over(model, now)
        pools = {pool.name: self._recommend(model, pool, now, peak_over=peak_over) for pool in model.pools.values()}
        backlogs = self.sizer.backlog_requests_per_s.items()
        inputs = self.demand.inputs | {f"{role}_backlog_requests_per_s": rate for role, rate in backlogs}
        found = recommend(self.name, model, pools, inputs, now)
        notes = (*self.demand.forecast.notes, *self.sizer.sizes.infeasible.values())
        demands = self.sizer.demands.values()
        current = tuple(_within_capacity(one, model, now) if peak_over else one for one in demands)
        return replace(found, reasons=(*found.reasons, *notes), demands=current)

    def hold_reason(self, model: Model, pool: Pool, now: int) -> Reason | None:
        """Return why nothing is recommended for a pool; None if it has a size."""
        return self.sizer.hold_reason(model, pool, now)

    def _update(self, model: Model, now: int) -> None:
        """Learn the engines, and size the pools for a new load, or for a backlog that needs more workers.

        A backlog sizes the pools once in a surge window: where no pool can grow, sizing again changes nothing.
        """
        sizer, knobs = self.sizer, self.knobs
        sizer.backlog.update(model, now)
        for pool in model.pools.values():
            if sizer.learns(pool, knobs):
                if sizer.engines.is_outdated(pool):
                    self.forget_pool(pool.name)  # it is another pool now, under the same name
                sizer.engines.update(pool, now)
        sizer.apply(self.demand.update(model, knobs, now), model, knobs, now)
        if self.demand.outlook is None or now < self.short_at_ms or not model.traffic.is_reporting(now):
            return
        if sizer.is_short(model.objectives, knobs.drain_ms):
            self.short_at_ms = now + knobs.surge_window_ms
            load = self.demand.current_load(model, now)
            if load is not None:
                sizer.resize(model, load, knobs, now)

    def _is_peak_over(self, model: Model, now: int) -> bool:
        """Return whether a peak has passed of which no request waits; a demand for tokens has no peak."""
        if any(self.sizer.backlog.waiting.values()) or model.objectives.tokens_per_s:
            return False
        return self.demand.is_peak_over(model, self.knobs.surge_window_ms, now)

    def _recommend(self, model: Model, pool: Pool, now: int, *, peak_over: bool) -> PoolRecommendation:
        """Recommend the size of a pool; a scale-down keeps workers needed recently or until replacements are ready."""
        size, current = self.sizer.sizes.sized.get(pool.name), pool.effective_target(now)
        start_up_ms, window_ms = pool.start_up_ms(self.knobs.start_up_ms), self.knobs.surge_window_ms
        if size is not None:
            highest = self.highest.setdefault(pool.name, RollingMax(0))
            highest.window_ms = start_up_ms
            highest.push(now, size.replicas)
        reason = self.hold_reason(model, pool, now)
        if reason is not None or size is None:
            return PoolRecommendation(None, () if reason is None else (reason,))
        if size.replicas > current and peak_over:
            return hold_after_peak(size, pool, window_ms, now)
        found = recommend_size(size, model, pool, start_up_ms, now)
        if found.replicas is None or found.replicas >= current:
            return found
        return self._keep_needed(model, pool, found, now)

    def _keep_needed(self, model: Model, pool: Pool, found: PoolRecommendation, now: int) -> PoolRecommendation:
        """Return a scale-down that keeps the workers needed recently, or until replacements are ready."""
        wanted, current, highest = found.replicas or 0, pool.effective_target(now), self.highest[pool.name]
        reasons = list(found.reasons)
        needed = min(current, highest.max(now) or 0)
        if needed > wanted:
            numbers = {"wanted": wanted, "allowed": needed, "window_ms": highest.window_ms}
            reasons.append(Reason.of(ReasonCode.HIGHEST_RECOMMENDATION, pool.name, **numbers))
            wanted = needed
        sized = self.sizer.sizes.sized
        counts = {name: sized[name].replicas if name in sized else 0 for name in model.pools} | {pool.name: wanted}
        minimums = replacement_minimums(model.pools, self.sizer.demands[pool.knobs.role], counts, now)
        minimum = minimums.get(pool.name, wanted)
        if minimum > wanted:
            reasons.append(Reason.of(ReasonCode.REPLACEMENT_NOT_READY, pool.name, wanted=wanted, allowed=minimum))
            wanted = minimum
        return PoolRecommendation(None if wanted == current else wanted, tuple(reasons))


def _within_capacity(demand: RoleDemand, model: Model, now: int) -> RoleDemand:
    """Return a demand of at most what the current targets serve."""
    served = sum(rate * model.pools[name].effective_target(now) for name, rate in demand.capacities.items())
    return replace(demand, demand=min(demand.demand, served))
