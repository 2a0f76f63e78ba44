"""HPA planner: the Horizontal Pod Autoscaler of Kubernetes (``autoscaling/v2``), as a baseline.

Pools are evaluated every ``sync_interval_ms`` only; between two syncs the last recommendation is repeated. The rules
are those of the original, with its default behaviour:

- A metric proposes ``ceil(sum / target)`` workers, which is ``ceil(count x usage / target)``, or the current target if
  it is within ``tolerance``. The highest proposal of several metrics applies.
- A silent ready worker counts as exactly at the target for scale-down, and as empty for scale-up; a pending worker
  counts as empty for scale-up. Neither may reverse the direction.
- While one metric is unknown for the whole pool, the others may only scale up; without any, the pool is held.
- A scale-down takes the highest recommendation of ``down_stabilisation_ms``; a scale-up is limited to twice the current
  target or four more workers, whichever is higher.

Ratios apply to the count in force (``Pool.effective_target``), as the original reads ``spec.replicas`` instead of the
running pods. A count that was raised from outside is recorded as a recommendation, as the original records the first
count: after its start an agent does not scale down for ``down_stabilisation_ms``.
"""

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.planner import Finding, KnobProblem, ModelSettings
from loadline.core.planning.recommendation import PoolRecommendation, hold, samples_within, scale_to
from loadline.core.planning.synced import SyncedPlanner, SyncHistory
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode

Target = Annotated[float, Meta(ge=0, le=1_000_000)]

_GROWTH_FACTOR: Final = 2
_GROWTH_WORKERS: Final = 4


class HpaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the HPA planner; defaults of Kubernetes. A target of 0 switches its metric off."""

    sync_interval_ms: Annotated[int, Meta(ge=1_000, description="Time between two evaluations.")] = 15_000
    tolerance: Annotated[
        float, Meta(ge=0, lt=1, description="Relative deviation from a target that changes nothing.")
    ] = 0.1
    down_stabilisation_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="A scale-down takes the highest recommendation of this window.")
    ] = 300_000
    kv_usage_target: Annotated[
        Annotated[float, Meta(ge=0, le=1)], Meta(description="Mean KV usage of decode and aggregated workers.")
    ] = 0.7
    # Guides for vLLM recommend 3 to 10: below that the batch still admits requests, above it they wait for seconds.
    waiting_requests_target: Annotated[Target, Meta(description="Mean waiting requests of an aggregated worker.")] = 5.0
    # Without a queue, the requests in flight at all workers equal the utilisation times the count: a target above 1
    # would be reached at overload only. 0.7 leaves headroom. Waiting requests are 0 until all workers are busy.
    prefill_requests_target: Annotated[
        Target, Meta(description="Mean requests in flight, waiting or running, at a prefill worker.")
    ] = 0.7


class Metric(Struct, frozen=True):
    """Metric of a pool over the workers that report it, in integer millionths, so that rounding up is exact."""

    code: ReasonCode
    sum_micro: int
    known: int
    target_micro: int

    @classmethod
    def of(cls, code: ReasonCode, sum_micro: int, known: int, target: float) -> "Metric":
        """Create a metric; ``target`` is in units, not in millionths."""
        return cls(code, sum_micro, known, max(1, round(target * MICRO)))

    @property
    def mean(self) -> float:
        """Mean over the reporting workers, in units; 0 without any."""
        return self.sum_micro / (self.known * MICRO) if self.known else 0.0


class HpaPlanner(SyncedPlanner):
    """Planner that scales each pool by the ratio of its metrics to their targets."""

    name = "hpa"
    summary = "Kubernetes' Horizontal Pod Autoscaler: brings the mean of each metric to its target."
    group = "baseline"
    Knobs = HpaKnobs

    knobs: HpaKnobs
    histories: dict[str, SyncHistory] = field(default_factory=dict)

    @classmethod
    def check(cls, knobs: HpaKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield roles without a metric."""
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
        """Yield the targets of a pool, and the limits of a change."""
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

    def on_settings_change(self, before: HpaKnobs) -> None:  # noqa: ARG002 - any change has the same effect
        """Resize the windows; the next evaluation is a sync."""
        self.next_sync_ms = 0
        for history in self.histories.values():
            history.recommendations.window_ms = samples_within(self.knobs.down_stabilisation_ms).window_ms

    @property
    def sync_ms(self) -> int:
        """Time between two syncs."""
        return self.knobs.sync_interval_ms

    def new_history(self) -> SyncHistory:
        """Return a history with an empty window."""
        return SyncHistory(samples_within(self.knobs.down_stabilisation_ms))

    def known(self, pool: Pool) -> int:
        """Return the highest number of workers that report one of the metrics."""
        return max((metric.known for metric in self._metrics(pool)), default=0)

    def pool_inputs(self, pool: Pool) -> dict[str, float]:
        """Return the ready workers and the known metrics."""
        means = {str(metric.code): metric.mean for metric in self._metrics(pool) if metric.known}
        return {"ready": float(pool.ready)} | means

    def _metrics(self, pool: Pool) -> Iterator[Metric]:
        """Yield the metrics that apply to the role of a pool."""
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

    def sync(self, pool: Pool, now: int) -> PoolRecommendation:
        """Recommend the highest proposal of all metrics, within the limits of a change."""
        history, metrics, current = self.histories[pool.name], list(self._metrics(pool)), pool.effective_target(now)
        history.record_external_growth(current, now)
        known = [metric for metric in metrics if metric.known]
        proposed, reason = max((self._propose(metric, pool, now) for metric in known), key=lambda proposal: proposal[0])
        if proposed < current and len(known) < len(metrics):
            recommendation = hold(
                ReasonCode.METRIC_MISSING, pool, known=len(known), metrics=len(metrics), wanted=proposed
            )
        else:
            recommendation = self._normalise(pool, history, proposed, reason, now)
        history.expected = max(current, recommendation.replicas or 0)
        return recommendation

    def _propose(self, metric: Metric, pool: Pool, now: int) -> tuple[int, Reason]:
        """Return the count that one metric proposes, with the reason."""
        current, target, total = pool.effective_target(now), metric.target_micro, metric.sum_micro
        usage = total / (metric.known * target)
        if self._near(usage):
            numbers = {"value": metric.mean, "tolerance": self.knobs.tolerance, "target": target / MICRO}
            return current, Reason.of(ReasonCode.WITHIN_TOLERANCE, pool.name, **numbers)
        supply = pool.worker_counts(now)
        missing = pool.ready - metric.known
        # Overdue workers included: in the original their pods are pending.
        starting = supply.starting + supply.pending + supply.overdue
        unknown = missing + starting if usage > 1 else missing
        if usage < 1:
            total += missing * target
        counted, proposed = total / ((metric.known + unknown) * target), -(-total // target)
        is_reversed = counted < 1 if usage > 1 else proposed > current
        if unknown and (is_reversed or self._near(counted)):
            return current, Reason.of(ReasonCode.UNKNOWN_WORKERS, pool.name, missing=missing, starting=starting)
        return proposed, Reason.of(metric.code, pool.name, value=metric.mean, target=target / MICRO, wanted=proposed)

    def _near(self, usage: float) -> bool:
        return 1 - self.knobs.tolerance <= usage <= 1 + self.knobs.tolerance

    def _normalise(
        self, pool: Pool, history: SyncHistory, proposed: int, reason: Reason, now: int
    ) -> PoolRecommendation:
        """Limit a scale-down by the recommendations of the window, and a scale-up by the step limit."""
        current, reasons = pool.effective_target(now), [reason]
        history.recommendations.push(now, float(proposed))
        if proposed < current:
            proposed, delays = history.highest(proposed, pool, now)
            reasons += delays
        highest_allowed = max(_GROWTH_FACTOR * current, current + _GROWTH_WORKERS)
        if proposed > highest_allowed:
            reasons.append(Reason.of(ReasonCode.SCALE_UP_LIMIT, pool.name, wanted=proposed, allowed=highest_allowed))
            proposed = highest_allowed
        return scale_to(max(1, proposed), tuple(reasons), pool, now)
