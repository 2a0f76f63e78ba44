"""Queueing planner: sizes pools to serve the expected requests within their objectives, by a queueing model.

It is the model-based path of llm-d's Workload Variant Autoscaler, with the demand of the throughput planner: the
traffic forecast for the time when new workers are ready. A queueing model gives the rate that one worker of each pool
serves within TTFT and ITL. Differences from the original:

- Demand is arriving and waiting requests, not completed ones, which never exceed the capacity of the workers.
- The objectives apply to a fraction of the requests instead of their mean.
- The pools of a role share its demand; in the original, each pool is sized for all of it.
- A pool grows in one step. It shrinks when no sizing of the last start-up time has needed the workers.
- A pool that other pools replace shrinks as their workers become ready.
- Engines without a profile are fitted to the iterations that their workers report. Until then, a saturated pool grows
  by what its workers are seen to serve.
"""

from collections.abc import Iterator

from msgspec import field
from msgspec.structs import replace

from loadline.core.fleet.estimates import estimates_iterations
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
from loadline.core.planning.sizing.needs.saturated_pools import SaturatedPools
from loadline.core.planning.sizing.queueing.sizer import QueueSizer
from loadline.core.planning.traffic_planner import TrafficPlanner
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.status import Estimates


class QueueingPlanner(TrafficPlanner):
    """Planner that composes a demand tracker, a backlog and a queue sizer."""

    name = "queueing"
    summary = "Forecasts the traffic and sizes each role at least cost by a queueing model of its engines."
    group = "compatible"
    Knobs = QueueingKnobs
    needs = Needs(
        traffic="required",
        history=True,
        profiles="optional",
        objectives=frozenset({"ttft_ms", "itl_ms", "tokens_per_s", "attainment"}),
        shares_role_load=True,
    )

    knobs: QueueingKnobs
    sizer: QueueSizer = field(default_factory=QueueSizer)
    next_backlog_sizing_ms: int = 0
    """Earliest time (ms) of the next sizing due to a backlog alone."""
    saturated: SaturatedPools = field(default_factory=SaturatedPools)
    """Evidence of pools whose engines are not known."""
    highest: dict[str, RollingMax] = field(default_factory=dict)
    """Highest size of each pool in the last start-up time."""

    @classmethod
    def check(cls, knobs: QueueingKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield windows and seasons that have no effect."""
        yield from traffic_findings(knobs, model, place)

    @classmethod
    def describe(cls, knobs: QueueingKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the objective and the interval of the sizing of a pool, and its treatment of a backlog."""
        yield describe_throughput(knobs, model.objectives, pool)
        yield (
            "Chooses the cheapest mix of the pools of a role, with enough workers to serve a backlog within "
            f"{duration(knobs.drain_ms)}."
        )

    @classmethod
    def traffic_knobs(cls, knobs: QueueingKnobs) -> TrafficKnobs:
        """Return the knobs themselves, which include those of traffic."""
        return knobs

    def forget_pool(self, pool: str) -> None:
        """Discard the size of a pool, its share of demands, and its fitted engine."""
        self.sizer.forget_pool(pool)
        self.saturated.forget_pool(pool)
        self.highest.pop(pool, None)

    def export_learned(self) -> bytes | None:
        """Return the fitted engines, and the correction factors of the profiles."""
        return self.sizer.export_learned(self.knobs)

    def import_learned(self, data: bytes) -> None:
        """Use fitted engines and correction factors until newer ones are known."""
        self.sizer.import_learned(data, self.knobs)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Size the pools if a sizing is due; recommend their sizes and the demand of each role."""
        self._update(model, now)
        peak_over = self._is_peak_over(model, now)
        pools = {pool.name: self._recommend(model, pool, now, peak_over=peak_over) for pool in model.pools.values()}
        backlogs = self.sizer.backlog_requests_per_s.items()
        inputs = self.demand.inputs | {f"{role}_backlog_requests_per_s": rate for role, rate in backlogs}
        for name, pool in model.pools.items():
            if self.sizer.learns(pool, self.knobs) and estimates_iterations(pool):
                inputs[f"{name}.iterations_estimated"] = 1.0
        found = recommend(self.name, model, pools, inputs, now)
        notes = (*self.demand.forecast.notes, *self.sizer.sizes.infeasible.values())
        demands = self.sizer.demands.values()
        current = tuple(_within_capacity(one, model, now) if peak_over else one for one in demands)
        return replace(found, reasons=(*found.reasons, *notes), demands=current)

    def estimates(self, model: Model) -> Estimates:
        """Return the forecast, the correction factors and the predictions of the queueing model."""
        sizer = self.sizer
        return Estimates(self.demand.record.status(), sizer.corrections(self.knobs), sizer.estimates(model))

    def hold_reason(self, model: Model, pool: Pool, now: int) -> Reason | None:
        """Return the reason to hold a pool; None if it has a size."""
        return self.sizer.hold_reason(model, pool, now)

    def _update(self, model: Model, now: int) -> None:
        """Update the fitted engines, and size the pools for a new load or for a backlog that needs more workers.

        A backlog causes at most one sizing per surge window, since another one changes nothing if no pool can grow.
        """
        sizer, knobs = self.sizer, self.knobs
        sizer.backlog.update(model, now)
        for pool in model.pools.values():
            if sizer.learns(pool, knobs):
                if sizer.engines.is_outdated(pool):
                    self.forget_pool(pool.name)  # the pool was replaced by another one of its name
                sizer.engines.update(model, pool, now)
        sizer.apply(self.demand.update(model, knobs, now), model, knobs, now)
        self.saturated.update(model, sizer.sizes.sized, now)
        if self.demand.outlook is None or now < self.next_backlog_sizing_ms or not model.traffic.is_reporting(now):
            return
        if sizer.is_short(model.objectives, knobs.drain_ms):
            self.next_backlog_sizing_ms = now + knobs.surge_window_ms
            load = self.demand.current_load(model, now)
            if load is not None:
                sizer.resize(model, load, knobs, now)

    def _is_peak_over(self, model: Model, now: int) -> bool:
        """Return True if a peak has passed and left no waiting requests; never for an objective in tokens/s."""
        if any(self.sizer.backlog.waiting.values()) or model.objectives.tokens_per_s:
            return False
        return self.demand.is_peak_over(model, self.knobs.surge_window_ms, now)

    def _recommend(self, model: Model, pool: Pool, now: int, *, peak_over: bool) -> PoolRecommendation:
        """Recommend the size of a pool, with the limits on a scale-down."""
        size, current = self.sizer.sizes.sized.get(pool.name), pool.effective_target(now)
        start_up_ms, window_ms = pool.start_up_ms(self.knobs.start_up_ms), self.knobs.surge_window_ms
        if size is not None:
            highest = self.highest.setdefault(pool.name, RollingMax(0))
            highest.window_ms = start_up_ms
            highest.push(now, size.replicas)
        reason = self.hold_reason(model, pool, now)
        if reason is not None or size is None:
            held = PoolRecommendation(None, () if reason is None else (reason,))
            return self.saturated.grow(model, pool, held, self.knobs.drain_ms, now)
        if size.replicas > current and peak_over:
            return hold_after_peak(size, pool, window_ms, self.demand.next_sizing_ms, now)
        found = recommend_size(size, model, pool, start_up_ms, self.demand.next_sizing_ms, now)
        if found.replicas is None or found.replicas >= current:
            return found
        return self._keep_needed(model, pool, found, now)

    def _keep_needed(self, model: Model, pool: Pool, found: PoolRecommendation, now: int) -> PoolRecommendation:
        """Limit a scale-down to workers not needed in the last start-up time, and whose replacements are ready."""
        wanted, current, highest = found.replicas or 0, pool.effective_target(now), self.highest[pool.name]
        reasons = list(found.reasons)
        needed = min(current, highest.max(now) or 0)
        if needed > wanted:
            left_ms = highest.falls_below_ms(needed, now) - now
            numbers = {"wanted": wanted, "allowed": needed, "window_ms": highest.window_ms, "left_ms": left_ms}
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
    """Limit a demand to the capacity of the current targets."""
    served = sum(rate * model.pools[name].effective_target(now) for name, rate in demand.capacities.items())
    return replace(demand, demand=min(demand.demand, served))
