"""Planner that learns what workers serve within the objectives, and needs no engine profile.

It learns from the reports of the fleet how latency depends on the work of a worker, and grows at once to the highest
count that any of these estimates needs:

- *demand*: the arrivals at the time when a worker requested now is ready, and for decode the requests that still run
  then (``BatchFlow``), over what a worker serves within TTFT and ITL;
- *saturation*: the arrivals over what full workers complete, which needs no objective and no model;
- *occupancy*: full KV caches;
- *backlog*: additional workers while requests are late behind a backlog.

A pool shrinks to what demand, saturation and occupancy all allow, by as many workers at once, when being wrong costs
less than waiting: see ``ShrinkHold``. A shrink never takes the remaining workers far beyond a load that was seen to be
good.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final
from zlib import crc32

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.traffic_totals import TrafficTotals, thousandths
from loadline.core.fleet.windows import RollingMax
from loadline.core.planning.demand.arrival_rate import ArrivalRate
from loadline.core.planning.demand.forecast_record import ExpectedArrivals, ForecastRecord
from loadline.core.planning.demand.load_lulls import LoadLulls
from loadline.core.planning.guardrails.knobs import UNPACED, GuardrailKnobs
from loadline.core.planning.planner import ModelSettings, Needs, Planner
from loadline.core.planning.planners.saturation import SaturationKnobs, SaturationPlanner
from loadline.core.planning.recommendation import PoolRecommendation, hold_without_data, recommend
from loadline.core.planning.sizing.evidence.first_outputs import FirstOutputs
from loadline.core.planning.sizing.evidence.learned import (
    EngineKind,
    LearnedEvidence,
    LearnedPool,
    decode_evidence,
    merged,
)
from loadline.core.planning.sizing.evidence.request_shares import RequestShares, reported_latencies
from loadline.core.planning.sizing.late_requests import itl_share
from loadline.core.planning.sizing.needs.batch_flow import BatchFlow
from loadline.core.planning.sizing.needs.passed_on import PASSED_ON_MS, passed_on
from loadline.core.planning.sizing.needs.pool_needs import SAMPLES, PoolLoad, PoolNeeds, PoolState
from loadline.core.planning.sizing.needs.prompt_lines import prompt_lines
from loadline.core.planning.sizing.needs.shared_roles import EmptyPool, pool_traffic, share_needs
from loadline.core.planning.sizing.needs.shrink_limits import shrink, with_lasting
from loadline.core.planning.sizing.needs.size_estimates import size_estimates
from loadline.core.planning.sizing.needs.unneeded_workers import UNNEEDED_MS
from loadline.core.planning.sizing.profile.rates import ProfiledRates
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand, SizeEstimate
from loadline.core.vocabulary.scalars import Role
from loadline.core.vocabulary.status import Estimates, PoolEstimate

_SAMPLE_MS: Final = 1_000
_EARLY_MS: Final = 50
"""Traffic that is reported so shortly before or after a sample is due makes the sample, so that a fleet whose reports
come once a second is planned once a second, and not by a timer between them too."""
_COMPARED_MS: Final = 30_000
"""Time over which a forecast is compared with the arrivals: of fewer arrivals, chance would be most of the error."""
_SURGE_RATIO: Final = 2.0
_SURGE_MIN: Final = 10
"""Arrivals since the last sample, relative to those of a second and absolute, above which another is taken at once."""
_FRONTENDS_MS: Final = 10_000
"""Time in which frontends send their first reports: after a start, reports of workers may come before."""
_ESTIMATES_MS: Final = 10_000
"""Interval of the estimates for ``explain``, which take twice as long as a plan."""


class AutoPlannerKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the auto planner."""

    cost_of_miss: Annotated[
        float,
        Meta(
            gt=0,
            le=1e4,
            description="Cost of a request that misses its objectives, in requests: that many could be served at the "
            "cost of one that is late. More keeps idle workers longer, and adds more while there is a backlog.",
        ),
    ] = 20.0
    start_up_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="Start-up time of a worker, until one has been observed.")
    ] = 60_000


class AutoPlanner(Planner):
    """Planner that composes an arrival rate, evidence by pool, and a hold of shrinks."""

    name = "auto"
    summary = "Learns what a worker serves within the objectives and provides for the arrivals; needs no profile."
    Knobs = AutoPlannerKnobs
    needs = Needs(traffic="optional", objectives=frozenset({"ttft_ms", "itl_ms", "attainment"}), shares_role_load=True)
    pool_fields: ClassVar[tuple[str, ...]] = ("pools", "estimated", "backlogged")
    guardrails: ClassVar[GuardrailKnobs] = UNPACED

    knobs: AutoPlannerKnobs
    pools: dict[str, PoolState] = field(default_factory=dict)
    arrivals: ArrivalRate = field(default_factory=ArrivalRate)
    lulls: LoadLulls = field(default_factory=LoadLulls)
    lengths: Lengths = field(default_factory=Lengths)
    first_outputs: FirstOutputs = field(default_factory=FirstOutputs)
    shares: RequestShares = field(default_factory=RequestShares)
    profiled: ProfiledRates = field(default_factory=ProfiledRates)
    totals: TrafficTotals | None = None
    """Totals of the traffic at the last sample."""
    sampled_ms: int = -_SAMPLE_MS
    surge: float = 0.0
    """Arrivals since the last sample above which another is taken at once."""
    forecasts: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Arrivals (1/s) to provide for when growing and when shrinking, by lead time, as of the last sample."""
    backlogged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Workers with a backlog that they cannot serve within TTFT: the first to go in a shrink."""
    passed_on: RollingMax = field(default_factory=lambda: RollingMax(PASSED_ON_MS))
    """Requests/s that prefill workers pass on while some have a backlog, in thousandths."""
    estimated: dict[str, tuple[SizeEstimate, ...]] = field(default_factory=dict)
    """Estimates for each pool, at most ``_ESTIMATES_MS`` old, and those of the last change."""
    estimates_due_ms: int = 0
    record: ForecastRecord = field(default_factory=ForecastRecord)
    by_workers: SaturationPlanner = field(default_factory=lambda: SaturationPlanner(SaturationKnobs()))
    """Planner while no frontend reports."""
    began_ms: int = -1
    """Time of the first plan."""
    next_ms: int = 0
    inherited: LearnedEvidence = LearnedEvidence(Lengths(), {})
    """Evidence of a predecessor."""
    exported: LearnedEvidence = LearnedEvidence(Lengths(), {})
    """Evidence of the last export."""

    @classmethod
    def describe(cls, knobs: AutoPlannerKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield what the pool is sized for, and the hold of its shrinks."""
        ttft, itl = f"TTFT {model.objectives.ttft_ms:g} ms", f"ITL {model.objectives.itl_ms:g} ms"
        objective = {"prefill": ttft, "decode": itl}.get(pool.role, f"{ttft} and {itl}")
        yield (
            f"Learns what a worker serves within {objective}, unless a profile tells it, and provides for the arrivals "
            f"one start-up ahead ({duration(knobs.start_up_ms)} until one is observed)."
        )
        if sum(one.role == pool.role for one in model.pools) > 1:
            yield "Shares the load of its role with other pools: the cheapest grows, the most expensive one shrinks."
        yield (
            "Scales down half a minute after a start-up time, and later where lulls have cost more than idle workers; "
            f"a late request costs {knobs.cost_of_miss:g} served ones."
        )

    def next_wake(self) -> int:
        """Return the time of the next sample."""
        return self.next_ms

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool."""
        super().forget_pool(pool)
        self.profiled.forget_pool(pool)
        self.shares.forget_pool(pool)
        self.by_workers.forget_pool(pool)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Take a sample if due, and recommend a count for each pool."""
        if self.began_ms < 0:
            self.began_ms = now
        if not model.traffic.frontends and now - self.began_ms >= _FRONTENDS_MS:
            by_workers = self.by_workers.plan(model, now)
            self.next_ms = self.by_workers.next_wake()
            return replace(by_workers, planner=self.name)
        if self._is_sample_due(model.traffic.totals, now):
            self._sample(model, now)
        self.next_ms = max(now + 1, self.sampled_ms + _SAMPLE_MS + _EARLY_MS)
        pools: dict[str, PoolRecommendation] = {}
        demands: tuple[RoleDemand, ...] = ()
        self.passed_on.push(now, 0)  # unless prefill workers have a backlog now; they come before decode workers
        for role in sorted({pool.knobs.role: None for pool in model.pools.values()}, key=_is_not_prefill):
            of_role = [pool for pool in model.pools.values() if pool.knobs.role == role]
            found, demand = self._recommend_role(model, of_role, now)
            pools |= found
            demands += () if demand is None else (demand,)
        in_order = {name: pools[name] for name in model.pools}
        if now >= self.estimates_due_ms:  # at another time for each model
            self.estimates_due_ms = now + _ESTIMATES_MS - (now + crc32(model.name.encode())) % _ESTIMATES_MS
        estimates = tuple(one for name in model.pools for one in self.estimated.get(name, ()))
        result = recommend(self.name, model, in_order, self._inputs(model), now)
        return replace(result, demands=demands, victims=self._victims(), estimates=estimates)

    def export_learned(self) -> bytes | None:
        """Return the latency curves of the pools and the lengths of requests; None if nothing was learned."""
        learned = {
            name: LearnedPool.of(one.kind, one.evidence, one.hold.learned_ms) for name, one in self.pools.items()
        }
        found = LearnedEvidence(self.lengths, merged(learned, self.inherited.pools))
        if found.age != self.exported.age:
            self.exported = found.copy()
        return self.exported.encoded if self.exported.pools else None

    def import_learned(self, data: bytes) -> None:
        """Start with the exported evidence."""
        found = decode_evidence(data)
        if found is not None:
            self.inherited, self.lengths = found, found.lengths.inherited()
            self.first_outputs = FirstOutputs(ended=True)
            self.pools.clear()

    def estimates(self, model: Model) -> Estimates:
        """Return the forecast, and the requests that a worker of each pool serves."""
        known = {name: self._serves(model, pool) for name, pool in model.pools.items() if name in self.pools}
        return Estimates(self.record.status(), {}, {name: PoolEstimate(rate) for name, rate in known.items() if rate})

    def _state(self, pool: Pool) -> PoolState:
        """Return the state of a pool; a new one begins with the evidence of a predecessor on the same engines."""
        kind, state = EngineKind.of(pool), self.pools.get(pool.name)
        if state is None or state.kind != kind:
            state = self.pools[pool.name] = PoolState(kind)
            before = self.inherited.pools.get(pool.name)
            if before is not None and before.kind == kind:
                state.is_inherited, state.evidence = True, before.evidence()
                state.hold.learned_ms = before.hold_ms
        return state

    def _is_sample_due(self, totals: TrafficTotals, now: int) -> bool:
        """Return True if a second has passed since the last sample, or more requests have arrived than in two."""
        early_ms = _EARLY_MS if totals != self.totals else 0  # by value: a restored snapshot has two equal objects
        surge = self.totals is not None and totals.arrivals_since(self.totals) > self.surge
        return surge or now - self.sampled_ms >= _SAMPLE_MS - early_ms

    def _sample(self, model: Model, now: int) -> None:
        """Record the traffic and the loads since the last sample."""
        totals = model.traffic.totals
        interval = totals.since(totals if self.totals is None else self.totals)
        self.totals, self.sampled_ms, self.forecasts = totals, now, {}
        start_ups_ms = [pool.start_up_ms(self.knobs.start_up_ms) for pool in model.pools.values()]
        lead_ms = min(start_ups_ms, default=0)
        self.arrivals.add(interval, lead_ms, self.knobs.cost_of_miss, now)
        self.lulls.update(self.arrivals, max(start_ups_ms, default=0), UNNEEDED_MS, now)
        present_per_s = self.arrivals.forecast(0, SAMPLES[0], now)
        self.surge = _SURGE_RATIO * present_per_s + _SURGE_MIN
        osl_tokens_min = self.first_outputs.osl_tokens(model, interval, now)
        self.lengths.are_early = not self.first_outputs.ended
        self.lengths.add(interval, osl_tokens_min)
        reported = reported_latencies(model)
        self.shares.add(model, reported, present_per_s)
        traffic = pool_traffic(model, interval, self.shares, reported)
        for pool in model.pools.values():
            state = self._state(pool)
            seconds = interval.observed_ms / 1_000.0
            came = self._flow(model, pool).count(traffic[pool.name].share * interval.arrivals, seconds)
            state.hold.record_excess(came - pool.ready * (state.serves or 0.0) * seconds)
            state.evidence.add(model, pool, traffic[pool.name], self.lengths, now)
            state.serves = None
        lines = prompt_lines(model, lambda pool: self._state(pool).evidence)
        self.profiled.update(model, lambda pool: self._arriving(model, pool, now)[0], lines, now)
        self._record_forecast(model, now)

    def _record_forecast(self, model: Model, now: int) -> None:
        """Record the forecast for when a worker requested now is ready, and compare earlier ones with the arrivals."""
        for forecast in self.record.ended(now):
            observed = self.arrivals.observed(forecast.from_ms, forecast.until_ms)
            if observed is not None:
                self.record.compare(forecast, observed)
        if self.arrivals.at_ms:
            lead_ms = max(pool.start_up_ms(self.knobs.start_up_ms) for pool in model.pools.values())
            from_ms, (rate, _) = now + lead_ms - _COMPARED_MS // 2, self._forecast(lead_ms, now)
            self.record.expect(ExpectedArrivals(from_ms, from_ms + _COMPARED_MS, rate), lead_ms)

    def _victims(self) -> dict[str, tuple[str, ...]]:
        """Return the workers to lose first in each pool that has any."""
        return {name: workers for name, workers in self.backlogged.items() if workers}

    def _inputs(self, model: Model) -> dict[str, float]:
        """Return what was learned of each pool, in requests per second."""
        inputs = {"isl_tokens": self.lengths.isl_tokens, "osl_tokens": self.lengths.osl_tokens}
        for pool in model.pools.values():
            serves = self._serves(model, pool)
            if serves:
                inputs[f"{pool.name}.serves_per_s"] = serves
        return inputs

    def _serves(self, model: Model, pool: Pool) -> float:
        """Return the requests/s that a worker serves within the objectives, by its profile if any; 0 if unknown."""
        role, state = pool.knobs.role, self._state(pool)
        if state.serves is None:  # anew after each sample: it costs 40 us
            work = self.lengths.expected_work(role)
            capacity = state.evidence.capacity(role, model.objectives) / work if work else 0.0
            by_prompts = self.profiled.serves_by_line(pool)
            state.learned, state.is_by_prompts = by_prompts or capacity, bool(by_prompts)
            state.serves = self.profiled.serves(pool, self.lengths) or state.learned
        return state.serves

    def _forecast(self, lead_ms: int, now: int) -> tuple[float, float]:
        found = self.forecasts.get(lead_ms)
        if found is None:
            growth, shrink = self.arrivals.forecasts(lead_ms, SAMPLES, now)
            found = self.forecasts[lead_ms] = growth, shrink
        return found

    def _recommend_role(
        self, model: Model, pools: list[Pool], now: int
    ) -> tuple[dict[str, PoolRecommendation], RoleDemand | None]:
        """Recommend a count for each pool of a role; return also the demand of the role if several share it."""
        found: dict[str, PoolRecommendation] = {}
        loads: list[PoolLoad] = []
        for pool in pools:
            known = pool.load.queue_reporting if pool.knobs.role == "prefill" else pool.load.kv_reporting
            held = hold_without_data(pool, known)
            if held is not None:
                found[pool.name] = held
            else:
                loads.append(self._load(model, pool, now))
        self.backlogged |= {load.pool.name: load.backlogged_workers() for load in loads}
        if pools[0].knobs.role == "prefill":
            self.passed_on.push(now, thousandths(passed_on(loads, self.backlogged)))
        needs = [load.needs() for load in loads]
        shared = None
        if len(pools) > 1 and loads:
            empty = [EmptyPool(pool, self._serves(model, pool)) for pool in pools if pool.name in found]
            errors = {load.pool.name: self.shares.error(model, load.pool) for load in loads}
            shared = share_needs(loads, needs, empty, errors)
        if shared is not None:
            needs, found = shared.needs, found | shared.empty
        for load, need in zip(loads, needs, strict=True):
            recommended = _with_infeasible_itl(load, self._recommend(load, need))
            found[load.pool.name] = with_lasting(load, need, recommended, self.lulls.short_ms)
        changes = any(one.replicas is not None for one in found.values())
        for load in loads:
            if changes or now >= self.estimates_due_ms or load.pool.name not in self.estimated:
                profiled = self.profiled.serves(load.pool, self.lengths)
                one = size_estimates(load, profiled, load.state.learned, self.record)
                self.estimated[load.pool.name] = tuple(one)
        return found, None if shared is None else shared.demand

    def _load(self, model: Model, pool: Pool, now: int) -> PoolLoad:
        """Return a pool with the arrivals that it has to serve, which are its share of those of the role."""
        serves, state = self._serves(model, pool), self.pools[pool.name]
        start_up_ms, cost_of_miss = pool.start_up_ms(self.knobs.start_up_ms), self.knobs.cost_of_miss
        rates = self._arriving(model, pool, now)
        share = self.shares.of(model, pool) if pool.knobs.role == "decode" else 0.0
        passed_on_per_s = share * (self.passed_on.max(now) or 0) / 1_000.0
        known = model, pool, state, self.arrivals, self.lengths, *rates, serves
        return PoolLoad(*known, start_up_ms, cost_of_miss, passed_on_per_s, now)

    def _arriving(self, model: Model, pool: Pool, now: int) -> tuple[float, float, float]:
        """Return the requests/s of a pool when a worker requested now is ready: for growth, and for shrinks.

        The third value is the part of the present requests that is in them, and still there then.
        """
        growing, lasting = self._forecast(pool.start_up_ms(self.knobs.start_up_ms), now)
        share, flow = self.shares.of(model, pool), self._flow(model, pool)
        return flow.count(share * growing), flow.count(share * lasting), flow.staying

    def _flow(self, model: Model, pool: Pool) -> BatchFlow:
        """Return the requests of a pool that are still there when a worker requested now is ready."""
        evidence = self._state(pool).evidence
        limit_ms = itl_share(model.objectives) * evidence.itl_objective_ms(model.objectives)
        return BatchFlow.of(
            pool, evidence.queues, self.lengths.osl_tokens, limit_ms, pool.start_up_ms(self.knobs.start_up_ms)
        )

    def _recommend(self, load: PoolLoad, needs: PoolNeeds) -> PoolRecommendation:
        """Recommend what a pool needs, or what the limits of a shrink leave."""
        pool, state, serves, now = load.pool, load.state, load.serves, load.now
        current, wanted = pool.effective_target(now), needs.wanted
        if serves and state.known_since_ms < 0:
            state.known_since_ms = now
        state.hold.update(max(needs.keep, needs.rising), load.capacity, current, load.start_up_ms, now)
        reason = Reason(needs.reason.code, pool.name, needs.reason.numbers | {"wanted": float(wanted)})
        if wanted > current:
            if serves:
                state.hold.record_growth(wanted, self.knobs.cost_of_miss / serves, load.start_up_ms, now)
            state.unproven_shrink.record_growth(current, now)
            if reason.code is ReasonCode.DEMAND_TARGET:
                rates, error = (needs.growing_per_s, needs.requests_per_s), self.arrivals.error(SAMPLES[0])
                state.reversed_shrink.record_growth(*rates, current, error, now)
            return PoolRecommendation(wanted, (reason,))
        if not serves:
            learning = Reason.of(ReasonCode.CAPACITY_LEARNING, pool.name, needed=needs.lasting)
            return PoolRecommendation(None, (learning,))
        if needs.keep >= current:
            state.unproven_shrink.forget()
            margin = {"wanted": wanted, "allowed": current, "left_ms": self.next_ms - now}
            held_by = (Reason.of(ReasonCode.SCALE_DOWN_MARGIN, pool.name, **margin),) if wanted < current else ()
            return PoolRecommendation(None, (reason, *held_by))
        return shrink(load, needs, reason)


def _with_infeasible_itl(load: PoolLoad, found: PoolRecommendation) -> PoolRecommendation:
    """Add to the reasons that no count of workers meets the ITL objective, if their load has shown it."""
    state, objectives = load.state, load.model.objectives
    if not load.serves or load.serves != state.learned or not state.evidence.is_itl_infeasible(objectives):
        return found
    numbers = {"best_ms": state.evidence.itl.floor_ms, "objective_ms": objectives.itl_ms}
    return replace(found, reasons=(*found.reasons, Reason(ReasonCode.SLA_INFEASIBLE, load.pool.name, numbers, "ITL")))


def _is_not_prefill(role: Role) -> bool:
    """Return the sort key by which prefill pools come first."""
    return role != "prefill"
