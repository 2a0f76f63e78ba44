"""The throughput planner: as many workers as the traffic to come needs, by the profiles of the engines.

It does the five steps of Dynamo's planner. Every ``throughput_adjustment_interval_ms`` it collects what the interval
brought, corrects the profiles (off by default) and has requests and lengths forecast. As often as workers come it sizes
each pool for the busiest interval until those of the next look are there, and says so until then. What differs:

- it starts as soon as there are some seconds of traffic, and looks at once when more arrives than it has sized for;
- a shrink leaves a tenth to spare, waits as long as workers take to come, and for frontends that have just gone silent;
- no requests is a load of 0; frontends that say nothing are a hold;
- a forecast moves a pool by at most ``replicas_step_max``, in all looks; what was measured may move it further.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta, field

from loadline.core.engines.lengths import LengthDistribution, constant_length
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.traffic import RecentArrivals
from loadline.core.planning.demand.checks import traffic_findings
from loadline.core.planning.demand.intervals import Intervals, Outlook
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.demand.pending_forecast import PendingForecast
from loadline.core.planning.planner import Finding, ForecastRequest, ModelSettings, Needs, Planner
from loadline.core.planning.recommendation import WAKE_MS, PoolRecommendation, PoolSize, recommend, scale_down_delays
from loadline.core.planning.sizing.correction import Correction
from loadline.core.planning.sizing.forecast_steps import STEP_MAX, bounded
from loadline.core.planning.sizing.sizing_by_profile import Demand, Size, Sizing, profile_problem, sizing
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import History
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation

_SPARE: Final = 1.1
"""A pool shrinks to what this much of the demand needs: at the edge of two counts noise would change it for ever."""
_LOOK_LEAST_MS: Final = 10_000
"""Between two looks: within less, traffic says nothing new."""
_NONE: Final = constant_length(0.0)


class ThroughputKnobs(TrafficKnobs, frozen=True, forbid_unknown_fields=True):
    """Knobs of the throughput planner; names of Dynamo's, units added."""

    replicas_step_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Most workers by which one forecast changes a pool.")
    ] = STEP_MAX
    attainment: Annotated[
        float,
        Meta(
            ge=0,
            le=0.999,
            description="Fraction of requests that must meet the objectives; 0 targets means, as Dynamo does.",
        ),
    ] = 0.95
    no_correction: Annotated[
        bool, Meta(description="Use the profiles as they are; false: scale them by observed latencies.")
    ] = True


class ThroughputPlanner(Planner):
    """See the module."""

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
    pool_fields: ClassVar[tuple[str, ...]] = ("sized", "problems", "infeasible", "foreseen_at")

    knobs: ThroughputKnobs
    intervals: Intervals | None = None
    start_up_ms: int = -1
    """How long workers take to come: the longest of all pools, of each as learned or else the knob."""
    correction: Correction = field(default_factory=Correction)
    outlook: Outlook | None = None
    """What the pools are sized for; None before the first look."""
    sized_ms: int = -1
    isl_spread: float = 1.0
    """``1 + cv^2`` of the prompts: sums of lengths swing by so much more than counts do."""
    sized: dict[str, PoolSize] = field(default_factory=dict)
    problems: dict[str, Reason] = field(default_factory=dict)
    infeasible: dict[str, Reason] = field(default_factory=dict)
    foresight: PendingForecast = field(default_factory=PendingForecast)
    foreseen_at: dict[str, int] = field(default_factory=dict)
    """What was decided of each pool when the newest forecast came: it moves them from there, in all looks."""
    look_at_ms: int = 0
    """When the forecasts are to be looked at again."""
    next_ms: int = 0

    @classmethod
    def check(cls, knobs: ThroughputKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield windows and seasons that would see nothing."""
        yield from traffic_findings(knobs, model, place)

    @classmethod
    def describe(cls, knobs: ThroughputKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the objective that a pool is sized for, and how often."""
        objectives = model.objectives
        ttft, itl = f"TTFT {objectives.ttft_ms:g} ms", f"ITL {objectives.itl_ms:g} ms"
        target = {"prefill": ttft, "decode": itl}.get(pool.role, f"{ttft} and {itl}")
        yield (
            f"At least every {duration(knobs.throughput_adjustment_interval_ms)}, sizes for the forecast of the "
            f"{knobs.forecast.predictor} predictor within {target}; reacts at once to a surge over "
            f"{duration(knobs.surge_window_ms)}."
        )

    @classmethod
    def traffic_knobs(cls, knobs: ThroughputKnobs) -> TrafficKnobs:
        """Return its own knobs: they include those."""
        return knobs

    def __post_init__(self) -> None:
        if self.start_up_ms < 0:
            self.start_up_ms = self.knobs.start_up_ms
        if self.intervals is None:
            self.intervals = Intervals(self.knobs.throughput_adjustment_interval_ms, self.knobs.busiest_ms)

    @property
    def _intervals(self) -> Intervals:
        assert self.intervals is not None  # noqa: S101 - set when it is made
        return self.intervals

    def on_settings_change(self, before: ThroughputKnobs) -> None:
        """A series of other intervals begins anew; until it says something, what the pools are sized to stands."""
        self._intervals.busiest_ms = self.knobs.busiest_ms
        if self.knobs.throughput_adjustment_interval_ms != before.throughput_adjustment_interval_ms:
            self.intervals = Intervals(self.knobs.throughput_adjustment_interval_ms, self.knobs.busiest_ms)
            self.foresight = PendingForecast(request=self.foresight.request)  # an answer under way is to the old series

    def warm_up(self, history: History) -> None:
        """Forecast from the first look on."""
        self._intervals.recall(history)

    def next_wake(self) -> int:
        """The end of the interval, or the next look at who is fresh."""
        return self.next_ms

    def resume_requests_from(self, requests: int) -> None:
        """Count on from there."""
        self.foresight.request = requests

    def forecast_request(self) -> ForecastRequest | None:
        """Forecasts of what comes after the newest interval."""
        return self.foresight.forecast_request()

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """The answer to the open question; others are late."""
        self.foresight.ingest_forecast(answer)

    def export_learned(self) -> bytes | None:
        """How the engines differ from their profiles."""
        return None if self.knobs.no_correction else self.correction.export_learned()

    def import_learned(self, data: bytes) -> None:
        """Correct the profiles from the first look on."""
        if not self.knobs.no_correction:
            self.correction.import_learned(data)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Look where that is due or called for, and say what the pools were last sized to."""
        self.observe(model, now)
        said = {pool.name: self._say(model, pool, now) for pool in model.pools.values()}
        found = recommend(self.name, model, said, self.inputs(), now)
        return Recommendation(found.planner, found.targets, (*found.reasons, *self.remarks()), found.inputs)

    def remarks(self) -> list[Reason]:
        """What is said beside the reasons: how good the forecast is, and the objectives that cannot be met."""
        return [*self.foresight.notes, *self.infeasible.values()]

    def observe(self, model: Model, now: int) -> None:
        """Take note of what has happened, and size the pools anew where that is due or called for."""
        self.next_ms = now + WAKE_MS
        self.start_up_ms = max(pool.start_up_ms(self.knobs.start_up_ms) for pool in model.pools.values())
        intervals = self._intervals
        if intervals.began_ms < 0:
            intervals.begin(model.traffic, now)
            if intervals.requests:  # a warm start: there is a past to forecast from
                self._ask()
        intervals.note(model.traffic, now)
        if now >= intervals.ends_ms:
            self._close(model, now)
        self.next_ms = min(self.next_ms, intervals.ends_ms)
        if not model.traffic.is_reporting(now):
            return
        if self.foresight.news or (self.foresight.begins_ms >= 0 and now >= self.look_at_ms):
            self._look(model, now)
        elif self._surging(model, now):
            before = self.outlook or intervals.last()
            self._size(
                intervals.measured(model.traffic, self.knobs.surge_window_ms, before, now), model, now, surge=True
            )

    def inputs(self) -> dict[str, float]:
        """What the pools are sized for."""
        found = {"start_up_ms": float(self.start_up_ms)}
        if self.outlook is not None:
            found["requests_per_s"] = self.outlook.requests_per_s
            found |= {
                name: value
                for name, value in (("isl_tokens", self.outlook.isl_tokens), ("osl_tokens", self.outlook.osl_tokens))
                if value is not None
            }
            found["kv_hit_rate"] = self.outlook.kv_hit_rate
        return found

    @property
    def look_interval_ms(self) -> int:
        """As often as workers come: what is asked for more often is still to come, and more seldom comes too late."""
        return min(self.knobs.throughput_adjustment_interval_ms, max(_LOOK_LEAST_MS, self.start_up_ms))

    # -- looking -------------------------------------------------------------------------------------------------------

    def _close(self, model: Model, now: int) -> None:
        """An interval is over: correct, and ask for what comes."""
        intervals = self._intervals
        had = intervals.close(model.traffic, now)
        if not self.knobs.no_correction:
            self.correction.note(model, had, intervals.interval_ms, now)
        self._ask()

    def _ask(self) -> None:
        """Ask for what comes after the newest interval, as far as any look before the next answer sees ahead."""
        ahead_ms = self._intervals.interval_ms + self._ahead_ms
        self.foresight.ask(self._intervals.questions(ahead_ms, self.knobs.forecast))

    @property
    def _ahead_ms(self) -> int:
        """Workers asked for now are there after a start-up, and have to do until those of the next look are."""
        return self.start_up_ms + self.look_interval_ms

    def _look(self, model: Model, now: int) -> None:
        """Size for what is ahead."""
        foresight, intervals = self.foresight, self._intervals
        if foresight.news:
            self.foreseen_at = {name: pool.effective_target(now) for name, pool in model.pools.items()}
        foresight.news, self.look_at_ms = False, now + self.look_interval_ms
        first, last = foresight.ahead(now, self._ahead_ms, intervals.interval_ms)
        outlook = intervals.outlook(foresight.forecasts, first, last, upper=self.knobs.demand == "upper")
        outlook = outlook or intervals.last()
        if outlook is not None:
            # What has arrived in the window, a minute, is no less likely to go on than what a model says.
            recent = model.traffic.recent_arrivals(model.traffic.window_ms, now)
            if self._tells(recent) and recent.requests_per_s > outlook.requests_per_s:
                outlook = msgspec.structs.replace(outlook, requests_per_s=recent.requests_per_s)
            self._size(outlook, model, now, surge=False)

    def _surging(self, model: Model, now: int) -> bool:
        """Whether surely more arrives than the pools are sized for, or they are not sized yet."""
        recent = model.traffic.recent_arrivals(self.knobs.surge_window_ms, now)
        if not self._tells(recent):
            return False
        if self.outlook is None or self.outlook.exceeded(recent, self.isl_spread):
            return True
        # Before the first interval is over it is not known how long outputs are: every few seconds more of them ended.
        return not self._intervals.requests and now - self.sized_ms >= self.knobs.surge_window_ms

    def _tells(self, recent: RecentArrivals) -> bool:
        """Whether enough was heard for a rate: the requests of the first second say nothing."""
        return recent.observed_ms >= self.knobs.surge_window_ms - WAKE_MS

    # -- sizing --------------------------------------------------------------------------------------------------------

    def _size(self, outlook: Outlook, model: Model, now: int, *, surge: bool) -> None:
        """Size all pools for an outlook. What is a surge only adds."""
        lengths = self._intervals.lengths(outlook, model.traffic)
        if lengths is None and outlook.requests_per_s > 0.0:
            return  # nothing has finished yet: it will where there are workers, or nobody says how long outputs are
        self.outlook, self.sized_ms = outlook, now
        if lengths is not None:
            self.isl_spread = lengths[0].mean_square / max(lengths[0].mean, 1.0) ** 2
        size_for = self._sizing(outlook, lengths or (_NONE, _NONE), model)
        found = spare = size_for(1.0)
        if any(found[pool.name].wanted < pool.effective_target(now) for pool in model.pools.values()):
            spare = size_for(_SPARE)
        self.problems = {name: size.problem for name, size in found.items() if size.problem is not None}
        self.infeasible = {name: size.infeasible for name, size in found.items() if size.infeasible is not None}
        for pool in model.pools.values():
            size = found[pool.name]
            if size.problem is not None:
                self.sized.pop(pool.name, None)
                continue
            before = self.sized.get(pool.name)
            if surge and before is not None and size.wanted <= before.replicas:
                # It stays for the reason it had, in the numbers of the load that the others are sized for.
                wanted, grew = before.replicas, before.reason.code is ReasonCode.TRAFFIC_SURGE
            else:
                wanted, grew = self._allowed(pool, size, spare[pool.name].wanted, now, surge=surge), surge
            numbers = outlook.load | {"busy": size.busy, "wanted": float(size.needed), "allowed": float(wanted)}
            self.sized[pool.name] = PoolSize(wanted, self.reason(pool, numbers, surge=grew))

    def _sizing(self, outlook: Outlook, lengths: tuple[LengthDistribution, LengthDistribution], model: Model) -> Sizing:
        return sizing(model, self.demand(outlook, lengths))

    def demand(self, outlook: Outlook, lengths: tuple[LengthDistribution, LengthDistribution]) -> Demand:
        """What an outlook asks of the pools."""
        return Demand(
            outlook.requests_per_s,
            *lengths,
            self.knobs.attainment,
            self.correction.prefill,
            self.correction.decode,
            outlook.kv_hit_rate,
            outlook.decode_share,
            outlook.decode_peak,
        )

    def _allowed(self, pool: Pool, size: Size, spare: int, now: int, *, surge: bool) -> int:
        """The count that a pool is sized to by this look."""
        standing = pool.effective_target(now)
        wanted = max(size.wanted, min(standing, spare))
        if surge:  # what has just begun may be untypical: it only adds
            return max(wanted, standing)
        since, least = self.foreseen_at.get(pool.name, standing), pool.knobs.replicas_min
        allowed = bounded(since, wanted, least, self.knobs.replicas_step_max)
        # What a surge has added since counts for no step: it stays as far as the forecast wants it too.
        return sorted((allowed, standing, wanted))[1]

    def reason(self, pool: Pool, numbers: dict[str, float], *, surge: bool) -> Reason:
        """What led to a size; planners that size otherwise know more."""
        return Reason(ReasonCode.TRAFFIC_SURGE if surge else ReasonCode.THROUGHPUT_TARGET, pool.name, numbers)

    # -- saying --------------------------------------------------------------------------------------------------------

    def _say(self, model: Model, pool: Pool, now: int) -> PoolRecommendation:
        """What a pool was sized to, as far as it may be changed now."""
        problem = self.blind(model, pool, now)
        if problem is not None:
            return PoolRecommendation(None, (problem,))
        sized, standing = self.sized[pool.name], pool.effective_target(now)
        if sized.replicas > standing and self.is_over(model, now):
            numbers = {"wanted": sized.replicas, "allowed": standing, "window_ms": self.knobs.surge_window_ms}
            return PoolRecommendation(None, (sized.reason, Reason.of(ReasonCode.PEAK_OVER, pool.name, **numbers)))
        if sized.replicas < standing:
            hold = list(scale_down_delays(model, pool, pool.start_up_ms(self.knobs.start_up_ms), now))
            if hold:
                return PoolRecommendation(None, (sized.reason, *hold))
        return PoolRecommendation(None if sized.replicas == standing else sized.replicas, (sized.reason,))

    def is_over(self, model: Model, now: int) -> bool:
        """Whether the pools are sized for a peak that nothing is to grow for any more."""
        window_ms = self.knobs.surge_window_ms
        return self.outlook is not None and self._intervals.is_over(self.outlook, model.traffic, window_ms, now)

    def blind(self, model: Model, pool: Pool, now: int) -> Reason | None:
        """Why nothing can be said of a pool; None where it was sized."""
        problem = profile_problem(pool) or self.problems.get(pool.name)
        if problem is not None:
            return problem
        if not model.traffic.is_reporting(now) or pool.name not in self.sized:
            return Reason(ReasonCode.TRAFFIC_UNKNOWN, pool.name, detail=model.traffic.missing_input(now))
        return None
