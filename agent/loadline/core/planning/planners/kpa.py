"""The KPA planner: the autoscaler of Knative Serving, as a baseline.

Every ``tick_interval_ms``, and never in between, as in the original, it wants ``ceil(in flight / target)`` workers for
the requests in flight, waiting or running, averaged over the stable window; what it wanted stands until the next tick:

- the load of workers that are silent is taken to be the mean of the others;
- a tick may multiply the ready workers by ``max_scale_up_rate`` and divide them by ``max_scale_down_rate``;
- when the panic window asks for ``panic_threshold`` times the ready workers it panics: the larger of both windows
  counts, and the count never falls, until the threshold was not reached for a whole stable window;
- it begins in panic where there is more than one worker: a history that was lost, or is too young, shrinks nothing;
- a shrink can be delayed: it takes the highest count of ``scale_down_delay_ms``.

Growth is measured from the ready workers, as in the original: those that have not come yet serve nobody. It never
scales to zero.
"""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.planning.planner import ModelSettings, Planner
from loadline.core.planning.recommendation import (
    NO_RECOMMENDATION,
    WAKE_MS,
    PoolRecommendation,
    hold_without_data,
    recommend,
    samples_within,
    scale_to,
)
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.scalars import Role

Concurrency = Annotated[float, Meta(ge=0.01, le=1_000_000)]
Rate = Annotated[float, Meta(gt=1, le=1_000_000)]

_DIGITS: Final = 9
"""A quotient is rounded to so many digits before it is rounded up: its last bits are no reason for a worker."""


class KpaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the KPA planner; names and defaults of Knative, units added."""

    tick_interval_ms: Annotated[int, Meta(ge=100, description="Time between two looks.")] = 2_000
    stable_window_ms: Annotated[
        int, Meta(ge=6_000, le=3_600_000, description="Length of the window that decides in calm times.")
    ] = 60_000
    panic_window_ratio: Annotated[
        float, Meta(ge=0.01, le=1, description="Length of the panic window, as a share of the stable one.")
    ] = 0.1
    panic_threshold: Annotated[
        Rate, Meta(description="Panic when the panic window asks for so many times the ready workers.")
    ] = 2.0
    # Knative's own default. With the target utilization 70 requests a worker: a quarter of what vLLM may batch (256).
    target_concurrency: Annotated[
        Concurrency, Meta(description="Requests in flight that fill a decode or an aggregated worker.")
    ] = 100.0
    # While there is no queue, the requests in flight are the work that arrives, whatever the count: 0.7 a worker, with
    # the target utilization, is a worker busy for 0.5 to 0.7 of the time. A target above 1 asks for more than there is.
    prefill_target_concurrency: Annotated[
        Concurrency, Meta(description="Requests in flight that fill a prefill worker.")
    ] = 1.0
    target_utilization: Annotated[
        float, Meta(ge=0.01, le=1, description="Share of the target concurrency to aim for.")
    ] = 0.7
    max_scale_up_rate: Annotated[Rate, Meta(description="Most growth of a tick, as a factor of the ready workers.")] = (
        1_000.0
    )
    max_scale_down_rate: Annotated[
        Rate, Meta(description="Most shrink of a tick, as a divisor of the ready workers.")
    ] = 2.0
    scale_down_delay_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="A shrink takes the highest count of this window.")
    ] = 0

    @property
    def panic_window_ms(self) -> int:
        """Length of the panic window."""
        return round(self.stable_window_ms * self.panic_window_ratio)

    def target(self, role: Role) -> float:
        """Return the requests in flight to aim for at a worker of this role."""
        full = self.prefill_target_concurrency if role == "prefill" else self.target_concurrency
        return full * self.target_utilization


class KpaHistory(Struct):
    """What the planner remembers of one pool."""

    in_flight: RollingSamples
    counts: RollingSamples
    panic_since_ms: int = -1
    """When it last was over the panic threshold; -1 in calm times."""
    panic_floor: int = 0
    """The highest count of this panic."""
    said: PoolRecommendation = NO_RECOMMENDATION

    def means(self, panic_window_ms: int, now: int) -> tuple[float, float]:
        """Requests in flight over the stable and over the panic window."""
        values, recent = (
            self.in_flight.values,
            [
                value
                for at_ms, value in zip(self.in_flight.at_ms, self.in_flight.values, strict=True)
                if at_ms > now - panic_window_ms
            ],
        )
        return sum(values) / len(values), sum(recent) / len(recent)


class KpaPlanner(Planner):
    """See the module."""

    name = "kpa"
    summary = "Knative's autoscaler: brings the requests in flight per worker to a target concurrency."
    Knobs = KpaKnobs
    pool_fields: ClassVar[tuple[str, ...]] = ("watches",)

    knobs: KpaKnobs
    watches: dict[str, KpaHistory] = field(default_factory=dict)
    next_sample_ms: int = 0
    next_tick_ms: int = 0

    @classmethod
    def describe(cls, knobs: KpaKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the target of a pool, and the threshold of a panic."""
        yield (
            f"Every {duration(knobs.tick_interval_ms)}, sizes for {knobs.target(pool.role):g} requests in flight per "
            f"worker, averaged over {duration(knobs.stable_window_ms)}."
        )
        yield (
            f"Panics when the last {duration(knobs.panic_window_ms)} need {knobs.panic_threshold:g} times the ready "
            f"workers: does not scale down for {duration(knobs.stable_window_ms)}."
        )

    def on_settings_change(self, before: KpaKnobs) -> None:  # noqa: ARG002 - the windows follow whatever they were
        """What was wanted stands until a tick, which is due at once."""
        self.next_sample_ms = self.next_tick_ms = 0
        for watch in self.watches.values():
            watch.in_flight.window_ms = samples_within(self.knobs.stable_window_ms).window_ms
            watch.counts.window_ms = samples_within(self.knobs.scale_down_delay_ms).window_ms

    def next_wake(self) -> int:
        """The next sample or the next tick."""
        return min(self.next_sample_ms, self.next_tick_ms)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Sample and judge the pools when that is due; else say again what was said, as far as there is data."""
        tick_due, sample_due = now >= self.next_tick_ms, now >= self.next_wake()
        if sample_due:
            self.next_sample_ms = now + WAKE_MS
        if tick_due:
            self.next_tick_ms = now + self.knobs.tick_interval_ms
        inputs: dict[str, float] = {}
        for pool in model.pools.values():
            watch = self.watches.get(pool.name)
            if watch is None:
                watch = self.watches[pool.name] = KpaHistory(
                    samples_within(self.knobs.stable_window_ms), samples_within(self.knobs.scale_down_delay_ms)
                )
            inputs[f"{pool.name}.ready"] = float(pool.ready)
            blind = hold_without_data(pool, pool.load.queue_reporting)
            if blind is not None:
                watch.said = blind
                continue
            if sample_due:
                _sample(pool, watch, now)
            if tick_due:
                watch.said = self._tick(pool, watch, now)
            inputs[f"{pool.name}.in_flight"] = _in_flight(pool)
        return recommend(self.name, model, {name: watch.said for name, watch in self.watches.items()}, inputs, now)

    def _tick(self, pool: Pool, watch: KpaHistory, now: int) -> PoolRecommendation:
        knobs = self.knobs
        target = knobs.target(pool.knobs.role)
        stable, panic = watch.means(knobs.panic_window_ms, now)
        stable_wanted, panic_wanted = (math.ceil(round(mean / target, _DIGITS)) for mean in (stable, panic))
        self._mind_panic(watch, panic_wanted / pool.ready, now)
        if watch.panic_since_ms < 0:
            wanted, count = stable_wanted, self._bounded(stable_wanted, pool)
            reason = Reason.of(
                ReasonCode.CONCURRENCY_TARGET, pool.name, concurrency=stable, target=target, wanted=wanted
            )
        else:
            wanted = max(stable_wanted, panic_wanted)
            count = watch.panic_floor = max(watch.panic_floor, self._bounded(wanted, pool))
            left_ms = max(0, watch.panic_since_ms + knobs.stable_window_ms - now)
            numbers = {"concurrency": max(stable, panic), "target": target, "allowed": count, "left_ms": left_ms}
            reason = Reason.of(ReasonCode.PANIC, pool.name, **numbers)
        reasons = [reason]
        if self._bounded(wanted, pool) != wanted:
            numbers = {"wanted": wanted, "allowed": self._bounded(wanted, pool), "ready": pool.ready}
            reasons.append(Reason.of(ReasonCode.SCALE_RATE, pool.name, **numbers))
        watch.counts.push(now, float(count))
        highest = int(max(watch.counts.values, default=count))
        if highest > count:
            window_ms = knobs.scale_down_delay_ms
            numbers = {"wanted": count, "allowed": highest, "window_ms": window_ms}
            reasons.append(Reason.of(ReasonCode.HIGHEST_RECOMMENDATION, pool.name, **numbers))
        return scale_to(max(1, highest, count), tuple(reasons), pool, now)

    def _mind_panic(self, watch: KpaHistory, surge: float, now: int) -> None:
        """Begin, extend or end a panic; ``surge`` is what is wanted as a multiple of what is ready."""
        if surge >= self.knobs.panic_threshold:
            watch.panic_since_ms = now
        elif watch.panic_since_ms >= 0 and now - watch.panic_since_ms > self.knobs.stable_window_ms:
            watch.panic_since_ms, watch.panic_floor = -1, 0

    def _bounded(self, wanted: int, pool: Pool) -> int:
        """No more, and no fewer, than a tick may change the ready workers to; rounded so that one is always allowed."""
        most = math.ceil(self.knobs.max_scale_up_rate * pool.ready)
        return min(max(wanted, math.floor(pool.ready / self.knobs.max_scale_down_rate)), most)


def _in_flight(pool: Pool) -> float:
    """Requests in flight in the whole pool, as if the silent workers had as many as the others."""
    return (pool.load.waiting + pool.load.running) / pool.load.queue_reporting * pool.ready


def _sample(pool: Pool, watch: KpaHistory, now: int) -> None:
    watch.in_flight.prune(now)
    if not watch.in_flight.values:
        watch.panic_since_ms = now if pool.ready > 1 else -1
        watch.panic_floor = pool.ready
    watch.in_flight.push(now, _in_flight(pool))
