"""The threshold planner: mean prefill queue and mean KV load against fixed thresholds, one worker at a time.

The rules are those of Dynamo's first load planner (0.2), made event-driven: its interval becomes a rolling window of
the same length that includes the picture of this moment, so a sample that carries a mean across a threshold is acted
on in the turn in which it arrives. What an interval forbade is still forbidden: no second change of a pool within
``adjustment_interval_ms``. There a change of the workers of one role stopped both; here each pool minds its own.

Both means are kept twice, as a lower and an upper bound: a worker that does not report, or leaves the number out,
counts as empty when growing and as full when shrinking.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.planner import Finding, KnobProblem, KnobWarning, ModelSettings, Planner
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation

Threshold = Annotated[float, Meta(ge=0)]


class ThresholdKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the threshold planner; names and defaults of Dynamo's load planner, units added."""

    metric_pulling_interval_ms: Annotated[int, Meta(ge=10, description="Time between two samples of the windows.")] = (
        1_000
    )
    adjustment_interval_ms: Annotated[
        int, Meta(ge=10, description="Length of the windows; least time between changes.")
    ] = 30_000
    prefill_queue_scale_up_threshold: Annotated[
        Threshold, Meta(description="Mean queued prefills above which to add.")
    ] = 0.5
    prefill_queue_scale_down_threshold: Annotated[
        Threshold, Meta(description="Mean queued prefills below which to take.")
    ] = 0.2
    decode_kv_scale_up_threshold: Annotated[Threshold, Meta(description="Mean KV load above which to add.")] = 0.9
    decode_kv_scale_down_threshold: Annotated[Threshold, Meta(description="Mean KV load below which to take.")] = 0.5
    waiting_request_kv_ratio: Annotated[Threshold, Meta(description="KV load added for each waiting request.")] = 0.02
    new_decode_worker_grace_intervals: Annotated[
        int, Meta(ge=0, description="Intervals without removal after an addition.")
    ] = 3
    prefill_queue_trend_intervals: Annotated[
        int, Meta(ge=0, description="Intervals until a new prefill worker is of use.")
    ] = 3


class Signal(Struct):
    """One signal of a pool over the window, as lower and upper bound."""

    low: RollingSamples
    high: RollingSamples
    now_low: float = 0.0
    now_high: float = 0.0

    def set(self, low: float, high: float) -> None:
        """The picture of this moment."""
        self.now_low, self.now_high = float(low), float(high)

    def pull(self, now: int) -> None:
        """Sample the picture of this moment."""
        self.low.push(now, self.now_low)
        self.high.push(now, self.now_high)

    def predicted(self, intervals: int) -> float:
        """Where the signal is after more windows like this one: ``last + (last - first) * intervals``."""
        first = self.low.values[0] if self.low.values else self.now_low
        return self.now_low + (self.now_low - first) * intervals


class ThresholdHistory(Struct):
    """What the planner remembers of one pool."""

    queue: Signal
    kv: Signal
    since_ms: int = -1
    """When the data of the window began; -1 while there is none."""


class ThresholdDecision(Struct, frozen=True):
    """One more (1), one less (-1) or none (0), and why."""

    step: int
    reason: Reason


class ThresholdPlanner(Planner):
    """See the module."""

    name = "threshold"
    summary = "Dynamo's load planner: one worker more or less as mean queue and KV load cross thresholds."
    Knobs = ThresholdKnobs
    pool_fields: ClassVar[tuple[str, ...]] = ("watches",)

    knobs: ThresholdKnobs
    watches: dict[str, ThresholdHistory] = field(default_factory=dict)
    next_pull_ms: int = 0

    @classmethod
    def check(cls, knobs: ThresholdKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield thresholds without a gap, and those that no load ever crosses."""
        for signal, up, down in (
            ("prefill_queue", knobs.prefill_queue_scale_up_threshold, knobs.prefill_queue_scale_down_threshold),
            ("decode_kv", knobs.decode_kv_scale_up_threshold, knobs.decode_kv_scale_down_threshold),
        ):
            if up <= down:
                problem = f"{up:g} is not above {signal}_scale_down_threshold {down:g}"
                yield KnobProblem(
                    f"{place}.{signal}_scale_up_threshold", problem, "Keep a gap, or the fleet will swing."
                )
        yield from _interval_warnings(knobs, model, place)
        yield from _threshold_warnings(knobs, model, place)

    @classmethod
    def describe(cls, knobs: ThresholdKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the thresholds of a pool, and the windows of its means."""
        interval_ms = knobs.adjustment_interval_ms
        if pool.role != "decode":
            yield (
                f"Adds one worker when the mean prefill queue is above {knobs.prefill_queue_scale_up_threshold:g} and "
                f"its trend stays above for {duration(knobs.prefill_queue_trend_intervals * interval_ms)}; "
                f"removes one below {knobs.prefill_queue_scale_down_threshold:g}."
            )
        if pool.role != "prefill":
            yield (
                f"Adds one worker when the mean KV load is above {knobs.decode_kv_scale_up_threshold:g}; removes one "
                f"below {knobs.decode_kv_scale_down_threshold:g}, but not within "
                f"{duration(knobs.new_decode_worker_grace_intervals * interval_ms)} of an addition."
            )
        if pool.role == "aggregated":
            yield "Either signal adds a worker; removing one needs both."
        window, sampling = duration(interval_ms), duration(knobs.metric_pulling_interval_ms)
        yield f"Signals are averaged over {window}, sampled every {sampling}; changes are at least {window} apart."

    def on_settings_change(self, before: ThresholdKnobs) -> None:  # noqa: ARG002 - the windows follow whatever they were
        """The windows are as long as the interval, and sampled at once."""
        self.next_pull_ms = 0
        for watch in self.watches.values():
            for window in (watch.queue.low, watch.queue.high, watch.kv.low, watch.kv.high):
                window.window_ms = self.knobs.adjustment_interval_ms

    def next_wake(self) -> int:
        """The next sampling."""
        return self.next_pull_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Step each pool by at most one."""
        self._look(model, now)
        targets: dict[str, int] = {}
        reasons: list[Reason] = []
        for pool in model.pools.values():
            verdict = self._judge(pool, now)
            if verdict.step:
                targets[pool.name] = pool.scaling_base(now) + verdict.step
            reasons.append(verdict.reason)
        # The reasons of what changes come first; sorting by a bool keeps the order of the pools otherwise.
        reasons.sort(key=lambda reason: reason.pool not in targets)
        return Recommendation(self.name, targets, tuple(reasons), self._inputs(model))

    def _look(self, model: Model, now: int) -> None:
        """Take the picture of this moment, and sample it when that is due."""
        due = now >= self.next_pull_ms
        if due:
            self.next_pull_ms = now + self.knobs.metric_pulling_interval_ms
        for pool in model.pools.values():
            watch = self.watches.get(pool.name)
            if watch is None:
                watch = self.watches[pool.name] = ThresholdHistory(self._signal(), self._signal())
            if pool.fresh == 0:
                watch.since_ms = -1
                watch.queue.low.clear()
                watch.queue.high.clear()
                watch.kv.low.clear()
                watch.kv.high.clear()
                continue
            if watch.since_ms < 0:
                watch.since_ms = now
            watch.queue.set(pool.load.waiting, pool.load.waiting + pool.ready - pool.load.queue_reporting)
            kv_sum = pool.load.kv_micro / MICRO + self.knobs.waiting_request_kv_ratio * pool.load.waiting_while_running
            watch.kv.set(kv_sum / pool.ready, (kv_sum + pool.ready - pool.load.kv_reporting) / pool.ready)
            if due:
                watch.queue.pull(now)
                watch.kv.pull(now)

    def _signal(self) -> Signal:
        window_ms = self.knobs.adjustment_interval_ms
        return Signal(RollingSamples(window_ms), RollingSamples(window_ms))

    def _judge(self, pool: Pool, now: int) -> ThresholdDecision:
        """Weigh one pool; guard clauses first: what is missing is a hold."""
        watch, role = self.watches[pool.name], pool.knobs.role
        if pool.ready == 0:
            return ThresholdDecision(0, Reason(ReasonCode.NO_WORKERS, pool.name))
        if _reporting(pool) == 0:
            return ThresholdDecision(
                0, Reason.of(ReasonCode.NO_DATA, pool.name, fresh=pool.fresh, ready=pool.ready, known=0)
            )
        if role == "prefill":
            verdict = self._judge_queue(pool, watch.queue)
        elif role == "decode":
            verdict = self._judge_kv(pool, watch.kv, now)
        else:
            verdict = _either_up_both_down(self._judge_queue(pool, watch.queue), self._judge_kv(pool, watch.kv, now))
        if verdict.step:
            verdict = self._mind_interval(pool, verdict, watch.since_ms, now)
        return self._mind_pending(pool, verdict, now) if verdict.step > 0 else verdict

    def _mind_interval(self, pool: Pool, verdict: ThresholdDecision, since_ms: int, now: int) -> ThresholdDecision:
        """One change an interval. A shrink also waits after any change of the ready workers: the means are of others.

        Growth does not: where workers come and go there are too few of them, and one that flaps would forbid it for
        ever. It waits only after the workers that were last asked for have come, to see what they are worth.
        """
        changed_at = max(pool.scaled_up_at_ms, pool.scaled_down_at_ms, since_ms)
        changed_at = max(changed_at, pool.target_reached_at_ms if verdict.step > 0 else pool.ready_changed_at_ms)
        age_ms, interval_ms = now - changed_at, self.knobs.adjustment_interval_ms
        if age_ms >= interval_ms:
            return verdict
        return ThresholdDecision(
            0, Reason.of(ReasonCode.ADJUSTMENT_INTERVAL, pool.name, age_ms=age_ms, interval_ms=interval_ms)
        )

    def _judge_queue(self, pool: Pool, queue: Signal) -> ThresholdDecision:
        up, down = self.knobs.prefill_queue_scale_up_threshold, self.knobs.prefill_queue_scale_down_threshold
        high = queue.high.mean_with(queue.now_high)
        if high < down:
            return ThresholdDecision(-1, Reason.of(ReasonCode.PREFILL_QUEUE_LOW, pool.name, mean=high, threshold=down))
        low = queue.low.mean_with(queue.now_low)
        if low <= up:
            return ThresholdDecision(0, Reason(ReasonCode.WITHIN_THRESHOLDS, pool.name))
        # A new worker is of use only after some intervals: a queue that will be gone by then needs none.
        predicted = queue.predicted(self.knobs.prefill_queue_trend_intervals)
        step, code = (1, ReasonCode.PREFILL_QUEUE_HIGH) if predicted > up else (0, ReasonCode.QUEUE_TREND_FALLING)
        return ThresholdDecision(step, Reason.of(code, pool.name, mean=low, threshold=up, predicted=predicted))

    def _judge_kv(self, pool: Pool, kv: Signal, now: int) -> ThresholdDecision:
        up, down = self.knobs.decode_kv_scale_up_threshold, self.knobs.decode_kv_scale_down_threshold
        high = kv.high.mean_with(kv.now_high)
        if high < down:
            grace_ms = self.knobs.new_decode_worker_grace_intervals * self.knobs.adjustment_interval_ms
            if pool.scaled_up_at_ms >= 0 and now - pool.scaled_up_at_ms < grace_ms:
                age_ms = now - pool.scaled_up_at_ms
                return ThresholdDecision(
                    0, Reason.of(ReasonCode.NEW_WORKER_GRACE, pool.name, age_ms=age_ms, grace_ms=grace_ms)
                )
            return ThresholdDecision(-1, Reason.of(ReasonCode.KV_USAGE_LOW, pool.name, mean=high, threshold=down))
        low = kv.low.mean_with(kv.now_low)
        if low > up:
            return ThresholdDecision(1, Reason.of(ReasonCode.KV_USAGE_HIGH, pool.name, mean=low, threshold=up))
        return ThresholdDecision(0, Reason(ReasonCode.WITHIN_THRESHOLDS, pool.name))

    def _mind_pending(self, pool: Pool, verdict: ThresholdDecision, now: int) -> ThresholdDecision:
        """Growth that was asked for is waited for, as long as it may still come; then it is reported, not repeated."""
        supply = pool.worker_counts(now)
        on_their_way = supply.pending + supply.starting
        if on_their_way:
            return ThresholdDecision(0, Reason.of(ReasonCode.WORKERS_PENDING, pool.name, pending=on_their_way))
        if pool.scaling_base(now) < pool.effective_target(now):
            return ThresholdDecision(0, Reason.of(ReasonCode.PENDING_UNREACHED, pool.name, missing=supply.overdue))
        return verdict

    def _inputs(self, model: Model) -> dict[str, float]:
        inputs: dict[str, float] = {}
        for pool in model.pools.values():
            watch, role = self.watches[pool.name], pool.knobs.role
            inputs[f"{pool.name}.ready"] = float(pool.ready)
            inputs[f"{pool.name}.fresh"] = float(pool.fresh)
            if pool.fresh == 0:
                continue
            if role != "decode":
                inputs[f"{pool.name}.prefill_queue_mean"] = watch.queue.low.mean_with(watch.queue.now_low)
                inputs[f"{pool.name}.prefill_queue_now"] = watch.queue.now_low
            if role != "prefill":
                inputs[f"{pool.name}.kv_load_mean"] = watch.kv.low.mean_with(watch.kv.now_low)
                inputs[f"{pool.name}.kv_load_now"] = watch.kv.now_low
        return inputs


def _reporting(pool: Pool) -> int:
    """Workers that say what the pool is judged by; one that lives and does not say it is as good as silent."""
    load = pool.load
    by_role = {"prefill": load.queue_reporting, "decode": load.kv_reporting}
    return by_role.get(pool.knobs.role, min(load.queue_reporting, load.kv_reporting))


def _either_up_both_down(queue: ThresholdDecision, kv: ThresholdDecision) -> ThresholdDecision:
    """An aggregated worker does both jobs: either may need more, both must need less."""
    if queue.step > 0 or kv.step > 0:
        return queue if queue.step > 0 else kv
    if queue.step < 0 and kv.step < 0:
        return kv
    return kv if queue.step < 0 else queue


def _interval_warnings(knobs: ThresholdKnobs, model: ModelSettings, place: str) -> Iterator[KnobWarning]:
    """Yield intervals that are too short for a second sample."""
    pulling_ms, adjustment_ms = knobs.metric_pulling_interval_ms, knobs.adjustment_interval_ms
    if adjustment_ms < pulling_ms:
        yield KnobWarning(
            f"{place}.adjustment_interval_ms",
            f"a window of {adjustment_ms} ms holds no second sample, as one is taken every {pulling_ms} ms. "
            "Set it to several times metric_pulling_interval_ms.",
        )
    if model.fleet.stale_after_ms < pulling_ms:
        yield KnobWarning(
            "fleet.stale_after_ms",
            f"{model.fleet.stale_after_ms} ms is less than metric_pulling_interval_ms {pulling_ms}, so workers go "
            "stale between two samples. Set it to several times the interval of the workers' reports.",
        )


def _threshold_warnings(knobs: ThresholdKnobs, model: ModelSettings, place: str) -> Iterator[KnobWarning]:
    """Yield thresholds that no load ever crosses."""
    roles = {pool.role for pool in model.pools}
    if roles & {"decode", "aggregated"}:
        up, each = knobs.decode_kv_scale_up_threshold, knobs.waiting_request_kv_ratio
        if each == 0 and up >= 1:
            yield KnobWarning(
                f"{place}.decode_kv_scale_up_threshold",
                f"KV load is at most 1 while waiting_request_kv_ratio is 0, so {up:g} never fires. Set 0.9 or so, or a "
                "ratio above 0.",
            )
        elif up > 1:
            yield KnobWarning(
                f"{place}.decode_kv_scale_up_threshold",
                f"{up:g} fires only with {(up - 1) / each:.0f} requests waiting at every worker whose KV cache is "
                "full. Set 0.9 or so.",
            )
        if knobs.decode_kv_scale_down_threshold == 0:
            yield KnobWarning(
                f"{place}.decode_kv_scale_down_threshold",
                "KV load is never below 0, so the pool never shrinks. Set 0.5 or so.",
            )
    if roles & {"prefill", "aggregated"} and knobs.prefill_queue_scale_down_threshold == 0:
        yield KnobWarning(
            f"{place}.prefill_queue_scale_down_threshold",
            "a queue is never below 0, so the pool never shrinks. Set 0.2 or so.",
        )
