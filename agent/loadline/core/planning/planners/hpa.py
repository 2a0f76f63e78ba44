"""The HPA planner: the Horizontal Pod Autoscaler of Kubernetes (``autoscaling/v2``), as a baseline.

A pool is judged every ``sync_interval_ms`` and never in between, as in the original: what it recommended stands until
the next sync. The rules are the original's, with its default behaviour:

- a metric asks for ``ceil(sum / target)`` workers, which is ``ceil(count x usage / target)``; within ``tolerance`` of
  the target it asks for what stands; of several metrics the highest proposal wins;
- a ready worker that is silent counts as exactly at the target when shrinking and as empty when growing; one that has
  not come yet counts as empty when growing; neither may turn the direction around;
- while a metric is unknown for the whole pool the others may only grow, and without any nothing changes;
- a shrink takes the highest recommendation of ``down_stabilisation_ms``; a sync may reach ``max(2 x, + 4)`` workers.

The count that is multiplied from is the one that stands (``Pool.target_now``), as the original reads ``spec.replicas``
and not the pods that run. A count that rose by another hand is taken as a recommendation too, as the original takes the
first count it sees: an agent that starts does not shrink for ``down_stabilisation_ms``.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.planner import Finding, KnobProblem, ModelSettings, Planner
from loadline.core.planning.recommendation import (
    NO_RECOMMENDATION,
    WAKE_MS,
    PoolRecommendation,
    hold,
    hold_without_data,
    recommend,
    samples_within,
    scale_to,
)
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation

Target = Annotated[float, Meta(ge=0, le=1_000_000)]

_GROWTH_FACTOR: Final = 2
_GROWTH_WORKERS: Final = 4


class HpaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the HPA planner; defaults of Kubernetes. A target of 0 switches its metric off."""

    sync_interval_ms: Annotated[int, Meta(ge=1_000, description="Time between two looks.")] = 15_000
    tolerance: Annotated[
        float, Meta(ge=0, lt=1, description="Distance from a target, as its share, that is let be.")
    ] = 0.1
    down_stabilisation_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="A shrink takes the highest recommendation of this window.")
    ] = 300_000
    kv_usage_target: Annotated[
        Annotated[float, Meta(ge=0, le=1)], Meta(description="Mean KV usage of decode and aggregated workers.")
    ] = 0.7
    # Guides for vLLM set 3 to 10: below that the batch still takes requests in, above it they wait for seconds.
    waiting_requests_target: Annotated[Target, Meta(description="Mean requests that wait at an aggregated worker.")] = (
        5.0
    )
    # While there is no queue, the requests in flight are the work that arrives, whatever the count: a target above 1
    # asks for workers that are busy for more than all of the time. 0.7 leaves room for a queue. The requests that wait
    # would say nothing before all are busy.
    prefill_requests_target: Annotated[
        Target, Meta(description="Mean requests in flight, waiting or running, at a prefill worker.")
    ] = 0.7


class Metric(Struct, frozen=True):
    """One metric over the workers of a pool that say it, in millionths: whole numbers round up without a doubt."""

    code: ReasonCode
    sum_micro: int
    known: int
    target_micro: int

    @classmethod
    def of(cls, code: ReasonCode, sum_micro: int, known: int, target: float) -> "Metric":
        """A metric with its target in units."""
        return cls(code, sum_micro, known, max(1, round(target * MICRO)))

    @property
    def mean(self) -> float:
        """Of the workers that say it, in units."""
        return self.sum_micro / (self.known * MICRO) if self.known else 0.0


class HpaHistory(Struct):
    """What the planner remembers of one pool."""

    recommendations: RollingSamples
    expected: int = 0
    """The most that may stand at the next sync by what this planner knows: more came by another hand."""
    said: PoolRecommendation = NO_RECOMMENDATION


class HpaPlanner(Planner):
    """See the module."""

    name = "hpa"
    summary = "Kubernetes' Horizontal Pod Autoscaler: brings the mean of each metric to its target."
    Knobs = HpaKnobs
    pool_fields: ClassVar[tuple[str, ...]] = ("watches",)

    knobs: HpaKnobs
    watches: dict[str, HpaHistory] = field(default_factory=dict)
    next_sync_ms: int = 0
    next_look_ms: int = 0

    @classmethod
    def check(cls, knobs: HpaKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield roles that are left without a metric."""
        roles = {pool.role for pool in model.pools}
        for role, key, targets in (
            ("prefill", "prefill_requests_target", (knobs.prefill_requests_target,)),
            ("decode", "kv_usage_target", (knobs.kv_usage_target,)),
            ("aggregated", "kv_usage_target", (knobs.kv_usage_target, knobs.waiting_requests_target)),
        ):
            if role in roles and not any(targets):
                yield KnobProblem(f"{place}.{key}", f"0 leaves {role} workers without a metric", "Set it above 0.")

    @classmethod
    def describe(cls, knobs: HpaKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the targets of a pool, and the limits of a step."""
        targets = {
            "KV usage": knobs.kv_usage_target if pool.role != "prefill" else 0,
            "waiting requests": knobs.waiting_requests_target if pool.role == "aggregated" else 0,
            "requests in flight": knobs.prefill_requests_target if pool.role == "prefill" else 0,
        }
        yield (
            f"Every {duration(knobs.sync_interval_ms)}, sizes for these means per worker (tolerance "
            f"{knobs.tolerance:.0%}): "
            f"{', '.join(f'{name} {target:g}' for name, target in targets.items() if target)}."
        )
        yield (
            f"Scales down to the highest recommendation of the last {duration(knobs.down_stabilisation_ms)}; "
            "scales up by 100% or 4 workers at a time, whichever is more."
        )

    def on_settings_change(self, before: HpaKnobs) -> None:  # noqa: ARG002 - the windows follow whatever they were
        """What was recommended stands until a sync, which is due at once."""
        self.next_sync_ms = 0
        for watch in self.watches.values():
            watch.recommendations.window_ms = samples_within(self.knobs.down_stabilisation_ms).window_ms

    def next_wake(self) -> int:
        """The next sync, or the next look at who is fresh."""
        return min(self.next_sync_ms, self.next_look_ms)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Judge the pools when a sync is due; else say again what was said, as far as there is data."""
        self.next_look_ms = now + WAKE_MS
        due = now >= self.next_sync_ms
        if due:
            self.next_sync_ms = now + self.knobs.sync_interval_ms
        inputs: dict[str, float] = {}
        for pool in model.pools.values():
            watch = self.watches.get(pool.name)
            if watch is None:
                watch = self.watches[pool.name] = HpaHistory(samples_within(self.knobs.down_stabilisation_ms))
            metrics = list(self._metrics(pool))
            inputs[f"{pool.name}.ready"] = float(pool.ready)
            inputs |= {f"{pool.name}.{metric.code}": metric.mean for metric in metrics if metric.known}
            blind = hold_without_data(pool, max((metric.known for metric in metrics), default=0))
            if blind is not None:
                watch.said = blind
            elif due:
                watch.said = self._sync(pool, watch, metrics, now)
        return recommend(self.name, model, {name: watch.said for name, watch in self.watches.items()}, inputs, now)

    def _metrics(self, pool: Pool) -> Iterator[Metric]:
        """What a pool of this role is judged by."""
        knobs, load, role = self.knobs, pool.load, pool.knobs.role
        if role != "prefill" and knobs.kv_usage_target:
            yield Metric.of(ReasonCode.KV_USAGE_TARGET, load.kv_micro, load.kv_reporting, knobs.kv_usage_target)
        if role == "aggregated" and knobs.waiting_requests_target:
            waiting_micro = load.waiting * MICRO
            yield Metric.of(
                ReasonCode.WAITING_REQUESTS_TARGET, waiting_micro, load.queue_reporting, knobs.waiting_requests_target
            )
        if role == "prefill" and knobs.prefill_requests_target:
            in_flight_micro = (load.waiting + load.running) * MICRO
            yield Metric.of(
                ReasonCode.PREFILL_REQUESTS_TARGET, in_flight_micro, load.queue_reporting, knobs.prefill_requests_target
            )

    def _sync(self, pool: Pool, watch: HpaHistory, metrics: list[Metric], now: int) -> PoolRecommendation:
        standing = pool.effective_target(now)
        if standing > watch.expected:
            watch.recommendations.push(now, float(standing))
        known = [metric for metric in metrics if metric.known]
        wanted, reason = max((self._propose(metric, pool, now) for metric in known), key=lambda proposal: proposal[0])
        if wanted < standing and len(known) < len(metrics):
            said = hold(ReasonCode.METRIC_MISSING, pool, known=len(known), metrics=len(metrics), wanted=wanted)
        else:
            said = self._normalise(pool, watch, wanted, reason, now)
        watch.expected = max(standing, said.replicas or 0)
        return said

    def _propose(self, metric: Metric, pool: Pool, now: int) -> tuple[int, Reason]:
        """The count that one metric asks for."""
        standing, target, total = pool.effective_target(now), metric.target_micro, metric.sum_micro
        usage = total / (metric.known * target)
        if self._near(usage):
            numbers = {"value": metric.mean, "tolerance": self.knobs.tolerance, "target": target / MICRO}
            return standing, Reason.of(ReasonCode.WITHIN_TOLERANCE, pool.name, **numbers)
        supply = pool.worker_counts(now)
        missing = pool.ready - metric.known
        # Asked for and not ready, however late: the original sees a pod that is pending.
        starting = supply.starting + supply.pending + supply.overdue
        unknown = missing + starting if usage > 1 else missing
        if usage < 1:
            total += missing * target
        counted, wanted = total / ((metric.known + unknown) * target), -(-total // target)
        turned = counted < 1 if usage > 1 else wanted > standing
        if unknown and (turned or self._near(counted)):
            return standing, Reason.of(ReasonCode.UNKNOWN_WORKERS, pool.name, missing=missing, starting=starting)
        return wanted, Reason.of(metric.code, pool.name, value=metric.mean, target=target / MICRO, wanted=wanted)

    def _near(self, usage: float) -> bool:
        return 1 - self.knobs.tolerance <= usage <= 1 + self.knobs.tolerance

    def _normalise(self, pool: Pool, watch: HpaHistory, wanted: int, reason: Reason, now: int) -> PoolRecommendation:
        """Hold a shrink by the recommendations of the window, and a growth by what a sync may reach."""
        standing, reasons = pool.effective_target(now), [reason]
        watch.recommendations.push(now, float(wanted))
        highest = int(max(watch.recommendations.values, default=wanted))
        if wanted < standing and highest > wanted:
            window_ms = self.knobs.down_stabilisation_ms
            numbers = {"wanted": wanted, "allowed": highest, "window_ms": window_ms}
            reasons.append(Reason.of(ReasonCode.HIGHEST_RECOMMENDATION, pool.name, **numbers))
            wanted = highest
        most = max(_GROWTH_FACTOR * standing, standing + _GROWTH_WORKERS)
        if wanted > most:
            reasons.append(Reason.of(ReasonCode.SCALE_UP_LIMIT, pool.name, wanted=wanted, allowed=most))
            wanted = most
        return scale_to(max(1, wanted), tuple(reasons), pool, now)
