"""KPA planner: the autoscaler of Knative Serving, or AIBrix's of the same name, as a baseline.

Every ``tick_interval_ms`` it computes ``ceil(in flight / target)`` workers, where requests in flight are waiting or
running and averaged over the stable window. Between two ticks the last recommendation is repeated. As in Knative:

- The load of a silent worker is estimated as the mean of the others.
- A tick may multiply the ready workers by ``max_scale_up_rate`` or divide them by ``max_scale_down_rate``.
- Panic begins when the panic window requires ``panic_threshold`` times the ready workers. Then the higher count of both
  windows applies, and the count does not fall until the threshold was not reached for a stable window.
- A pool with several workers starts in panic, so that it does not shrink before its history is complete.
- A scale-down takes the highest count of ``scale_down_delay_ms``.
- Growth is measured from the ready workers, since pending ones serve no requests.

``rules = "aibrix"`` are those of ``algorithm/kpa.go`` and ``context/context.go`` in ``pkg/controller/podautoscaler`` of
vllm-project/aibrix at e3e10f9 (``scalingStrategy: KPA``), with these differences from Knative:

- The rates apply to the count in force, of which pending workers are a part.
- A mean within 10 % of the target changes nothing. Workers that start count there, as ones without load.
- A tick is in panic if the mean of the panic window is more than ``panic_threshold`` times that of the stable one. Then
  the higher count of both windows applies; nothing is kept for later ticks.
- A scale-down takes the highest count of ``scale_down_delay_ms`` up to the one in force. That is what AIBrix documents;
  the code of this revision takes the lowest one, so that nothing is delayed.

The code of that revision divides a mean per worker by the target, where Knative divides a sum, and so never requests
more than a few workers; here it is the sum. Neither scales to zero.
"""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal

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
Rules = Literal["knative", "aibrix"]

_TOLERANCE: Final = 0.1
"""Relative deviation from the target that changes nothing, by the rules of AIBrix."""

_DIGITS: Final = 9
"""Decimals to which a quotient is rounded before it is rounded up, so that rounding errors add no worker."""


class KpaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the KPA planner; names and defaults of Knative, units added."""

    rules: Annotated[Rules, Meta(description="Autoscaler whose panic, rates and tolerance apply.")] = "knative"
    tick_interval_ms: Annotated[int, Meta(ge=100, description="Time between two evaluations.")] = 2_000
    stable_window_ms: Annotated[
        int, Meta(ge=6_000, le=3_600_000, description="Length of the averaging window outside of panic.")
    ] = 60_000
    panic_window_ratio: Annotated[
        float, Meta(ge=0.01, le=1, description="Length of the panic window, as a fraction of the stable window.")
    ] = 0.1
    panic_threshold: Annotated[
        Rate,
        Meta(
            description="Panic begins when the panic window requires this many times the ready workers; AIBrix: when "
            "its mean exceeds this many times that of the stable window."
        ),
    ] = 2.0
    # Default of Knative. With the target utilization: 70 requests per worker, a quarter of vLLM's maximum batch (256).
    target_concurrency: Annotated[
        Concurrency, Meta(description="Requests in flight that fully load a decode or an aggregated worker.")
    ] = 100.0
    # Without a queue, the requests in flight at all workers equal the utilisation times the count: with the target
    # utilization, 0.7 per worker is a utilisation of 0.5 to 0.7. A target above 1 would be reached at overload only.
    prefill_target_concurrency: Annotated[
        Concurrency, Meta(description="Requests in flight that fully load a prefill worker.")
    ] = 1.0
    target_utilization: Annotated[
        float, Meta(ge=0.01, le=1, description="Target fraction of the target concurrency.")
    ] = 0.7
    max_scale_up_rate: Annotated[
        Rate, Meta(description="Maximum growth per evaluation, as a factor of ready workers; AIBrix: of the count.")
    ] = 1_000.0
    max_scale_down_rate: Annotated[
        Rate, Meta(description="Maximum shrink per evaluation, as a divisor of ready workers; AIBrix: of the count.")
    ] = 2.0
    scale_down_delay_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="A scale-down takes the highest count of this window.")
    ] = 0

    @property
    def panic_window_ms(self) -> int:
        """Length of the panic window."""
        return round(self.stable_window_ms * self.panic_window_ratio)

    def target(self, role: Role) -> float:
        """Return the target of requests in flight per worker of a role."""
        full = self.prefill_target_concurrency if role == "prefill" else self.target_concurrency
        return full * self.target_utilization


class KpaHistory(Struct):
    """State of one pool between ticks."""

    in_flight: RollingSamples
    counts: RollingSamples
    panic_at_ms: int = -1
    """Last time above the panic threshold, Unix ms; -1 outside of panic."""
    panic_minimum: int = 0
    """Highest count of the current panic."""
    recommendation: PoolRecommendation = NO_RECOMMENDATION
    """Recommendation of the last tick."""

    def means(self, panic_window_ms: int, now: int) -> tuple[float, float]:
        """Return the mean requests in flight over the stable window and over the panic window."""
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
    """Planner that scales each pool by its requests in flight per worker."""

    name = "kpa"
    summary = "Knative's autoscaler: brings the requests in flight per worker to a target concurrency."
    group = "baseline"
    Knobs = KpaKnobs
    pool_fields: ClassVar[tuple[str, ...]] = ("histories",)

    knobs: KpaKnobs
    histories: dict[str, KpaHistory] = field(default_factory=dict)
    next_sample_ms: int = 0
    next_tick_ms: int = 0

    @classmethod
    def describe(cls, knobs: KpaKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the target of a pool, and the panic threshold."""
        yield (
            f"Every {duration(knobs.tick_interval_ms)}, sizes for {knobs.target(pool.role):g} requests in flight per "
            f"worker, averaged over {duration(knobs.stable_window_ms)}."
        )
        if knobs.rules == "aibrix":
            yield (
                f"Panics while the mean of the last {duration(knobs.panic_window_ms)} exceeds "
                f"{knobs.panic_threshold:g} times that: sizes for it. {_TOLERANCE:.0%} above to {_TOLERANCE:.0%} below "
                f"the target change nothing."
            )
            return
        yield (
            f"Panics when the last {duration(knobs.panic_window_ms)} need {knobs.panic_threshold:g} times the ready "
            f"workers: does not scale down for {duration(knobs.stable_window_ms)}."
        )

    def on_settings_change(self, before: KpaKnobs) -> None:  # noqa: ARG002 - any change has the same effect
        """Resize the windows; the next evaluation is a tick."""
        self.next_sample_ms = self.next_tick_ms = 0
        for history in self.histories.values():
            history.in_flight.window_ms = samples_within(self.knobs.stable_window_ms).window_ms
            history.counts.window_ms = samples_within(self.knobs.scale_down_delay_ms).window_ms

    def next_wake(self) -> int:
        """Return the next sample or the next tick."""
        return min(self.next_sample_ms, self.next_tick_ms)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Sample and evaluate the pools when due; otherwise repeat the recommendations of pools that have data."""
        tick_due, sample_due = now >= self.next_tick_ms, now >= self.next_wake()
        if sample_due:
            self.next_sample_ms = now + WAKE_MS
        if tick_due:
            self.next_tick_ms = now + self.knobs.tick_interval_ms
        inputs: dict[str, float] = {}
        for pool in model.pools.values():
            history = self.histories.get(pool.name)
            if history is None:
                history = self.histories[pool.name] = KpaHistory(
                    samples_within(self.knobs.stable_window_ms), samples_within(self.knobs.scale_down_delay_ms)
                )
            inputs[f"{pool.name}.ready"] = float(pool.ready)
            without_data = hold_without_data(pool, pool.load.queue_reporting)
            if without_data is not None:
                history.recommendation = without_data
                continue
            if sample_due:
                _sample(pool, history, now)
            if tick_due:
                history.recommendation = self._tick(pool, history, now)
            inputs[f"{pool.name}.in_flight"] = _in_flight(pool)
        return recommend(
            self.name, model, {name: history.recommendation for name, history in self.histories.items()}, inputs, now
        )

    def _tick(self, pool: Pool, history: KpaHistory, now: int) -> PoolRecommendation:
        knobs, current = self.knobs, pool.effective_target(now)
        means = history.means(knobs.panic_window_ms, now)
        aibrix = knobs.rules == "aibrix"
        count, reasons = (
            self._by_aibrix(pool, means, current) if aibrix else self._by_knative(pool, history, means, now)
        )
        history.counts.push(now, float(count))
        highest = int(max(history.counts.values, default=count))
        if aibrix:  # its delay raises no count
            highest = min(highest, max(count, current))
        if highest > count:
            window_ms = knobs.scale_down_delay_ms
            left_ms = history.counts.falls_below_ms(highest, now) - now
            numbers = {"wanted": count, "allowed": highest, "window_ms": window_ms, "left_ms": left_ms}
            reasons.append(Reason.of(ReasonCode.HIGHEST_RECOMMENDATION, pool.name, **numbers))
        return scale_to(max(1, highest, count), tuple(reasons), pool, now)

    def _by_knative(
        self, pool: Pool, history: KpaHistory, means: tuple[float, float], now: int
    ) -> tuple[int, list[Reason]]:
        """Return the count for the means of both windows by the rules of Knative, with its reasons."""
        knobs, (stable, panic) = self.knobs, means
        target = knobs.target(pool.knobs.role)
        stable_needed, panic_needed = (_needed(mean, target) for mean in means)
        self._update_panic(history, panic_needed / pool.ready, now)
        if history.panic_at_ms < 0:
            needed, count = stable_needed, self._bounded(stable_needed, pool.ready)
            reason = Reason.of(
                ReasonCode.CONCURRENCY_TARGET, pool.name, concurrency=stable, target=target, wanted=needed
            )
        else:
            needed = max(stable_needed, panic_needed)
            count = history.panic_minimum = max(history.panic_minimum, self._bounded(needed, pool.ready))
            left_ms = max(0, history.panic_at_ms + knobs.stable_window_ms - now)
            numbers = {"concurrency": max(stable, panic), "target": target, "allowed": count, "left_ms": left_ms}
            reason = Reason.of(ReasonCode.PANIC, pool.name, **numbers)
        reasons = [reason]
        allowed = self._bounded(needed, pool.ready)
        if allowed != needed:
            numbers = {"wanted": needed, "allowed": allowed, "ready": pool.ready}
            reasons.append(Reason.of(ReasonCode.SCALE_RATE, pool.name, **numbers))
        return count, reasons

    def _by_aibrix(self, pool: Pool, means: tuple[float, float], current: int) -> tuple[int, list[Reason]]:
        """Return the count for the means of both windows by the rules of AIBrix, with its reasons."""
        knobs, (stable, panic) = self.knobs, means
        target, base = knobs.target(pool.knobs.role), max(current, 1)
        panics = panic > knobs.panic_threshold * stable
        mean = panic if panics else stable  # its count is the higher one of both, too
        if round(abs(mean / (base * target) - 1.0), _DIGITS) <= _TOLERANCE:
            numbers = {"value": mean / base, "tolerance": _TOLERANCE, "target": target}
            return current, [Reason.of(ReasonCode.WITHIN_TOLERANCE, pool.name, **numbers)]
        wanted = _needed(mean, target)
        count = self._bounded(wanted, base)
        if panics:
            numbers = {"concurrency": mean, "target": target, "allowed": count, "left_ms": knobs.tick_interval_ms}
            reasons = [Reason.of(ReasonCode.PANIC, pool.name, **numbers)]
        else:
            numbers = {"concurrency": mean, "target": target, "wanted": wanted}
            reasons = [Reason.of(ReasonCode.CONCURRENCY_TARGET, pool.name, **numbers)]
        if count != wanted:
            numbers = {"wanted": wanted, "allowed": count, "period_ms": knobs.tick_interval_ms}
            reasons.append(Reason.of(ReasonCode.SCALING_POLICY, pool.name, **numbers))
        return count, reasons

    def _update_panic(self, history: KpaHistory, ratio: float, now: int) -> None:
        """Begin, extend or end a panic; ``ratio`` is that of needed to ready workers."""
        if ratio >= self.knobs.panic_threshold:
            history.panic_at_ms = now
        elif history.panic_at_ms >= 0 and now - history.panic_at_ms > self.knobs.stable_window_ms:
            history.panic_at_ms, history.panic_minimum = -1, 0

    def _bounded(self, needed: int, base: int) -> int:
        """Limit a count to the rates of a tick from a base, rounded so that a change by one is always allowed."""
        highest = math.ceil(self.knobs.max_scale_up_rate * base)
        return min(max(needed, math.floor(base / self.knobs.max_scale_down_rate)), highest)


def _needed(mean: float, target: float) -> int:
    return math.ceil(round(mean / target, _DIGITS))


def _in_flight(pool: Pool) -> float:
    """Return the requests in flight of the pool; those of silent workers are estimated by the mean of the others."""
    return (pool.load.waiting + pool.load.running) / pool.load.queue_reporting * pool.ready


def _sample(pool: Pool, history: KpaHistory, now: int) -> None:
    history.in_flight.prune(now)
    if not history.in_flight.values:
        history.panic_at_ms = now if pool.ready > 1 else -1
        history.panic_minimum = pool.ready
    history.in_flight.push(now, _in_flight(pool))
