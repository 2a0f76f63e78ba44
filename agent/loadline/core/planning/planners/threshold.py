"""Threshold planner: compares mean prefill queue and mean KV load with fixed thresholds, one worker at a time.

The rules are those of Dynamo's first load planner (0.2), made event-driven: its interval is a rolling window of the
same length that includes the current values, so a sample that moves a mean across a threshold has its effect in the
turn in which it arrives. A pool still changes at most once per ``adjustment_interval_ms``. In Dynamo, a change of the
workers of one role delays both roles; here, only its own pool.

Both means have a lower and an upper bound: a worker without a value, since it is silent or does not report the metric,
counts as empty for scale-up and as full for scale-down.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.planner import Finding, KnobProblem, KnobWarning, ModelSettings, Planner
from loadline.core.planning.recommendation import hold_between_changes
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation

Threshold = Annotated[float, Meta(ge=0)]


class ThresholdKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the threshold planner; names and defaults of Dynamo's load planner, with units added."""

    metric_pulling_interval_ms: Annotated[int, Meta(ge=10, description="Time between two samples of the windows.")] = (
        1_000
    )
    adjustment_interval_ms: Annotated[
        int, Meta(ge=10, description="Length of the windows; minimum time between two changes of a pool.")
    ] = 30_000
    prefill_queue_scale_up_threshold: Annotated[
        Threshold, Meta(description="Mean of waiting requests in a pool above which a worker is added.")
    ] = 0.5
    prefill_queue_scale_down_threshold: Annotated[
        Threshold, Meta(description="Mean of waiting requests in a pool below which a worker is removed.")
    ] = 0.2
    decode_kv_scale_up_threshold: Annotated[
        Threshold, Meta(description="Mean KV load above which a worker is added.")
    ] = 0.9
    decode_kv_scale_down_threshold: Annotated[
        Threshold, Meta(description="Mean KV load below which a worker is removed.")
    ] = 0.5
    waiting_request_kv_ratio: Annotated[
        Threshold, Meta(description="KV load that each waiting request of a worker adds.")
    ] = 0.02
    new_decode_worker_grace_intervals: Annotated[
        int, Meta(ge=0, description="Intervals after an addition during which no worker is removed.")
    ] = 3
    prefill_queue_trend_intervals: Annotated[
        int, Meta(ge=0, description="Intervals over which the trend of the queue is extrapolated before an addition.")
    ] = 3


class Signal(Struct):
    """Signal of a pool over the window, with lower and upper bound."""

    low: RollingSamples
    high: RollingSamples
    now_low: float = 0.0
    now_high: float = 0.0

    def set(self, low: float, high: float) -> None:
        """Set the current values."""
        self.now_low, self.now_high = float(low), float(high)

    def pull(self, now: int) -> None:
        """Add the current values to the windows."""
        self.low.push(now, self.now_low)
        self.high.push(now, self.now_high)

    def predicted(self, intervals: int) -> float:
        """Extrapolate the lower bound over further windows: ``last + (last - first) * intervals``."""
        first = self.low.values[0] if self.low.values else self.now_low
        return self.now_low + (self.now_low - first) * intervals


class ThresholdHistory(Struct):
    """Signals of one pool."""

    queue: Signal
    kv: Signal
    since_ms: int = -1
    """Start of the data in the windows, Unix ms; -1 without data."""


class ThresholdDecision(Struct, frozen=True):
    """Step of a pool by 1, -1 or 0 workers, with the reason."""

    step: int
    reason: Reason


class ThresholdPlanner(Planner):
    """Planner that adds or removes one worker when a mean crosses a threshold."""

    name = "threshold"
    summary = "Dynamo's load planner: adds or removes one worker when mean queue or KV load cross thresholds."
    group = "compatible"
    Knobs = ThresholdKnobs
    pool_fields: ClassVar[tuple[str, ...]] = ("histories",)

    knobs: ThresholdKnobs
    histories: dict[str, ThresholdHistory] = field(default_factory=dict)
    next_pull_ms: int = 0

    @classmethod
    def check(cls, knobs: ThresholdKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield thresholds without a gap between them, and those that no load can cross."""
        for signal, up, down in (
            ("prefill_queue", knobs.prefill_queue_scale_up_threshold, knobs.prefill_queue_scale_down_threshold),
            ("decode_kv", knobs.decode_kv_scale_up_threshold, knobs.decode_kv_scale_down_threshold),
        ):
            if up <= down:
                problem = f"{up:g} is not above {signal}_scale_down_threshold {down:g}"
                yield KnobProblem(
                    f"{place}.{signal}_scale_up_threshold", problem, "Leave a gap, or the worker count oscillates."
                )
        yield from _interval_warnings(knobs, model, place)
        yield from _threshold_warnings(knobs, model, place)

    @classmethod
    def describe(cls, knobs: ThresholdKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the thresholds of a pool, and the window of its means."""
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

    def on_settings_change(self, before: ThresholdKnobs) -> None:  # noqa: ARG002 - any change has the same effect
        """Resize the windows; the next evaluation adds a sample."""
        self.next_pull_ms = 0
        for history in self.histories.values():
            for window in (history.queue.low, history.queue.high, history.kv.low, history.kv.high):
                window.window_ms = self.knobs.adjustment_interval_ms

    def next_wake(self) -> int:
        """Return the next sampling."""
        return self.next_pull_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Recommend a step of at most one worker for each pool."""
        self._update(model, now)
        targets: dict[str, int] = {}
        reasons: list[Reason] = []
        for pool in model.pools.values():
            decision = self._decide(pool, now)
            if decision.step:
                targets[pool.name] = pool.scaling_base(now) + decision.step
            reasons.append(decision.reason)
        # Reasons of pools that change come first; the stable sort keeps the order of the pools otherwise.
        reasons.sort(key=lambda reason: reason.pool not in targets)
        return Recommendation(self.name, targets, tuple(reasons), self._inputs(model))

    def _update(self, model: Model, now: int) -> None:
        """Set the current values of all pools, and sample them if that is due."""
        due = now >= self.next_pull_ms
        if due:
            self.next_pull_ms = now + self.knobs.metric_pulling_interval_ms
        for pool in model.pools.values():
            history = self.histories.get(pool.name)
            if history is None:
                history = self.histories[pool.name] = ThresholdHistory(self._signal(), self._signal())
            if pool.fresh == 0:
                history.since_ms = -1
                history.queue.low.clear()
                history.queue.high.clear()
                history.kv.low.clear()
                history.kv.high.clear()
                continue
            if history.since_ms < 0:
                history.since_ms = now
            history.queue.set(pool.load.waiting, pool.load.waiting + pool.ready - pool.load.queue_reporting)
            kv_sum = pool.load.kv_micro / MICRO + self.knobs.waiting_request_kv_ratio * pool.load.waiting_while_running
            history.kv.set(kv_sum / pool.ready, (kv_sum + pool.ready - pool.load.kv_reporting) / pool.ready)
            if due:
                history.queue.pull(now)
                history.kv.pull(now)

    def _signal(self) -> Signal:
        window_ms = self.knobs.adjustment_interval_ms
        return Signal(RollingSamples(window_ms), RollingSamples(window_ms))

    def _decide(self, pool: Pool, now: int) -> ThresholdDecision:
        """Decide the step of a pool; a pool without data is held."""
        history, role = self.histories[pool.name], pool.knobs.role
        if pool.ready == 0:
            return ThresholdDecision(0, Reason(ReasonCode.NO_WORKERS, pool.name))
        if _reporting(pool) == 0:
            return ThresholdDecision(
                0, Reason.of(ReasonCode.NO_DATA, pool.name, fresh=pool.fresh, ready=pool.ready, known=0)
            )
        if role == "prefill":
            decision = self._decide_by_queue(pool, history.queue)
        elif role == "decode":
            decision = self._decide_by_kv(pool, history.kv, now)
        else:
            decision = _either_up_both_down(
                self._decide_by_queue(pool, history.queue), self._decide_by_kv(pool, history.kv, now)
            )
        if decision.step:
            decision = self._apply_interval(pool, decision, history.since_ms, now)
        return self._apply_pending(pool, decision, now) if decision.step > 0 else decision

    def _apply_interval(self, pool: Pool, decision: ThresholdDecision, since_ms: int, now: int) -> ThresholdDecision:
        """Delay a second change within an interval.

        A scale-down is delayed after any change of the ready workers too, since the means include earlier ones. A
        scale-up is not, as a flapping worker would delay it forever; it is delayed only after the target was reached,
        until the new workers take load.
        """
        changed_at_ms = max(pool.scaled_up_at_ms, pool.scaled_down_at_ms, since_ms)
        changed_at_ms = max(changed_at_ms, pool.target_reached_at_ms if decision.step > 0 else pool.ready_changed_at_ms)
        age_ms, interval_ms = now - changed_at_ms, self.knobs.adjustment_interval_ms
        if age_ms >= interval_ms:
            return decision
        return ThresholdDecision(0, hold_between_changes(pool, age_ms, interval_ms))

    def _decide_by_queue(self, pool: Pool, queue: Signal) -> ThresholdDecision:
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

    def _decide_by_kv(self, pool: Pool, kv: Signal, now: int) -> ThresholdDecision:
        up, down = self.knobs.decode_kv_scale_up_threshold, self.knobs.decode_kv_scale_down_threshold
        high = kv.high.mean_with(kv.now_high)
        if high < down:
            grace_ms = self.knobs.new_decode_worker_grace_intervals * self.knobs.adjustment_interval_ms
            if pool.scaled_up_at_ms >= 0 and now - pool.scaled_up_at_ms < grace_ms:
                age_ms = now - pool.scaled_up_at_ms
                numbers = {"age_ms": age_ms, "grace_ms": grace_ms, "left_ms": grace_ms - age_ms}
                return ThresholdDecision(0, Reason.of(ReasonCode.NEW_WORKER_GRACE, pool.name, **numbers))
            return ThresholdDecision(-1, Reason.of(ReasonCode.KV_USAGE_LOW, pool.name, mean=high, threshold=down))
        low = kv.low.mean_with(kv.now_low)
        if low > up:
            return ThresholdDecision(1, Reason.of(ReasonCode.KV_USAGE_HIGH, pool.name, mean=low, threshold=up))
        return ThresholdDecision(0, Reason(ReasonCode.WITHIN_THRESHOLDS, pool.name))

    def _apply_pending(self, pool: Pool, decision: ThresholdDecision, now: int) -> ThresholdDecision:
        """Delay a scale-up while workers are pending; report overdue workers instead of requesting more."""
        counts = pool.worker_counts(now)
        pending = counts.pending + counts.starting
        if pending:
            return ThresholdDecision(0, Reason.of(ReasonCode.WORKERS_PENDING, pool.name, pending=pending))
        if pool.scaling_base(now) < pool.effective_target(now):
            return ThresholdDecision(0, Reason.of(ReasonCode.PENDING_UNREACHED, pool.name, missing=counts.overdue))
        return decision

    def _inputs(self, model: Model) -> dict[str, float]:
        inputs: dict[str, float] = {}
        for pool in model.pools.values():
            history, role = self.histories[pool.name], pool.knobs.role
            inputs[f"{pool.name}.ready"] = float(pool.ready)
            inputs[f"{pool.name}.fresh"] = float(pool.fresh)
            if pool.fresh == 0:
                continue
            if role != "decode":
                inputs[f"{pool.name}.prefill_queue_mean"] = history.queue.low.mean_with(history.queue.now_low)
                inputs[f"{pool.name}.prefill_queue_now"] = history.queue.now_low
            if role != "prefill":
                inputs[f"{pool.name}.kv_load_mean"] = history.kv.low.mean_with(history.kv.now_low)
                inputs[f"{pool.name}.kv_load_now"] = history.kv.now_low
        return inputs


def _reporting(pool: Pool) -> int:
    """Return the number of workers that report the metrics of the role."""
    load = pool.load
    by_role = {"prefill": load.queue_reporting, "decode": load.kv_reporting}
    return by_role.get(pool.knobs.role, min(load.queue_reporting, load.kv_reporting))


def _either_up_both_down(queue: ThresholdDecision, kv: ThresholdDecision) -> ThresholdDecision:
    """Combine the decisions of an aggregated pool: either signal adds a worker, removing one needs both."""
    if queue.step > 0 or kv.step > 0:
        return queue if queue.step > 0 else kv
    if queue.step < 0 and kv.step < 0:
        return kv
    return kv if queue.step < 0 else queue


def _interval_warnings(knobs: ThresholdKnobs, model: ModelSettings, place: str) -> Iterator[KnobWarning]:
    """Yield intervals that are shorter than the sampling interval."""
    pulling_ms, adjustment_ms = knobs.metric_pulling_interval_ms, knobs.adjustment_interval_ms
    if adjustment_ms < pulling_ms:
        yield KnobWarning(
            f"{place}.adjustment_interval_ms",
            f"a window of {adjustment_ms} ms contains one sample only, since samples are {pulling_ms} ms apart. "
            "Set it to several times metric_pulling_interval_ms.",
        )
    if model.fleet.stale_after_ms < pulling_ms:
        yield KnobWarning(
            "fleet.stale_after_ms",
            f"{model.fleet.stale_after_ms} ms is less than metric_pulling_interval_ms {pulling_ms}, so workers become "
            "stale between two samples. Set it to several times the report interval of the workers.",
        )


def _threshold_warnings(knobs: ThresholdKnobs, model: ModelSettings, place: str) -> Iterator[KnobWarning]:
    """Yield thresholds that no load can cross."""
    roles = {pool.role for pool in model.pools}
    if roles & {"decode", "aggregated"}:
        up, each = knobs.decode_kv_scale_up_threshold, knobs.waiting_request_kv_ratio
        if each == 0 and up >= 1:
            yield KnobWarning(
                f"{place}.decode_kv_scale_up_threshold",
                f"KV load is at most 1 while waiting_request_kv_ratio is 0, so a threshold of {up:g} is never "
                "exceeded. Set about 0.9, or a ratio above 0.",
            )
        elif up > 1:
            yield KnobWarning(
                f"{place}.decode_kv_scale_up_threshold",
                f"{up:g} is exceeded only with {(up - 1) / each:.0f} waiting requests at every worker whose KV cache "
                "is full. Set about 0.9.",
            )
        if knobs.decode_kv_scale_down_threshold == 0:
            yield KnobWarning(
                f"{place}.decode_kv_scale_down_threshold",
                "KV load is never below 0, so the pool is never scaled down. Set about 0.5.",
            )
    if roles & {"prefill", "aggregated"} and knobs.prefill_queue_scale_down_threshold == 0:
        yield KnobWarning(
            f"{place}.prefill_queue_scale_down_threshold",
            "a queue is never below 0, so the pool is never scaled down. Set about 0.2.",
        )
