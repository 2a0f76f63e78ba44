"""APA planner: the autoscaler of AIBrix (``scalingStrategy: APA``), as a baseline.

Pools are evaluated every ``resync_interval_ms``. The metric is the mean over the workers, averaged over
``observe_window_ms``; its ratio to the target proposes ``ceil(count x ratio)`` workers.

- A ratio of at most ``1 + scale_up_tolerance`` and at least ``1 - scale_down_tolerance`` changes nothing.
- An evaluation multiplies the count by at most ``max_scale_up_rate``, or divides it by at most ``max_scale_down_rate``.
- A scale-down takes the highest proposal of ``scale_down_cooldown_window_ms``. That is what AIBrix documents; the code
  of this revision takes the lowest one, so that nothing is delayed.

Ratios apply to the count in force, of which pending workers are a part. Metrics and targets are those of
``samples/autoscaling``: KV usage 0.5 (``apa.yaml``) and 10 waiting requests of a prefill worker
(``stormservice-pool.yaml``).

Source: ``pkg/controller/podautoscaler`` of vllm-project/aibrix at e3e10f9, in it ``algorithm/apa.go`` for the count,
``context/context.go`` for the defaults and ``podautoscaler_controller.go`` for the interval. It never scales to zero.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.planner import ModelSettings
from loadline.core.planning.recommendation import PoolRecommendation, samples_within, scale_to
from loadline.core.planning.synced import SyncedPlanner, SyncHistory
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.scalars import Role

Rate = Annotated[float, Meta(gt=1, le=1_000_000)]
Tolerance = Annotated[float, Meta(ge=0, lt=1)]

_DIGITS: Final = 9


class ApaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the APA planner; names and defaults of AIBrix, units added."""

    resync_interval_ms: Annotated[int, Meta(ge=1_000, description="Time between two evaluations.")] = 10_000
    observe_window_ms: Annotated[
        int, Meta(ge=1_000, le=3_600_000, description="Length of the averaging window of the metric.")
    ] = 180_000
    scale_up_tolerance: Annotated[
        Tolerance, Meta(description="Relative excess over the target that changes nothing.")
    ] = 0.1
    scale_down_tolerance: Annotated[
        Tolerance, Meta(description="Relative shortfall from the target that changes nothing.")
    ] = 0.1
    max_scale_up_rate: Annotated[Rate, Meta(description="Maximum growth per evaluation, as a factor of the count.")] = (
        2.0
    )
    max_scale_down_rate: Annotated[
        Rate, Meta(description="Maximum shrink per evaluation, as a divisor of the count.")
    ] = 2.0
    scale_down_cooldown_window_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="A scale-down takes the highest proposal of this window.")
    ] = 300_000
    kv_usage_target: Annotated[
        float, Meta(gt=0, le=1, description="Mean KV usage of decode and aggregated workers.")
    ] = 0.5
    waiting_requests_target: Annotated[
        float, Meta(gt=0, le=1_000_000, description="Mean waiting requests of a prefill worker.")
    ] = 10.0

    def target(self, role: Role) -> float:
        """Return the target of the metric of a role."""
        return self.waiting_requests_target if role == "prefill" else self.kv_usage_target


class ApaHistory(SyncHistory, kw_only=True):
    """State of one pool between syncs."""

    values: RollingSamples
    """Means of the metric over the workers."""


class ApaPlanner(SyncedPlanner):
    """Planner that scales each pool by the ratio of one metric to its target, with a band of tolerance."""

    name = "apa"
    summary = "AIBrix's autoscaler: brings the mean of one metric to its target, within a band and rates."
    group = "baseline"
    Knobs = ApaKnobs

    knobs: ApaKnobs
    histories: dict[str, ApaHistory] = field(default_factory=dict)

    @classmethod
    def describe(cls, knobs: ApaKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the target of a pool, its band, and the limits of a change."""
        metric = "waiting requests" if pool.role == "prefill" else "KV usage"
        yield (
            f"Every {duration(knobs.resync_interval_ms)}, sizes for a mean of {knobs.target(pool.role):g} {metric} per "
            f"worker over {duration(knobs.observe_window_ms)}; {knobs.scale_up_tolerance:.0%} above to "
            f"{knobs.scale_down_tolerance:.0%} below change nothing."
        )
        yield (
            f"Multiplies the count by at most {knobs.max_scale_up_rate:g} or divides it by "
            f"{knobs.max_scale_down_rate:g}; scales down to the highest proposal of the last "
            f"{duration(knobs.scale_down_cooldown_window_ms)}."
        )

    def on_settings_change(self, before: ApaKnobs) -> None:  # noqa: ARG002 - any change has the same effect
        """Resize the windows; the next evaluation is a sync."""
        self.next_sync_ms = 0
        for history in self.histories.values():
            fresh = self.new_history()
            history.recommendations.window_ms = fresh.recommendations.window_ms
            history.values.window_ms = fresh.values.window_ms

    @property
    def sync_ms(self) -> int:
        """Time between two evaluations."""
        return self.knobs.resync_interval_ms

    def new_history(self) -> ApaHistory:
        """Return a history with empty windows."""
        knobs = self.knobs
        return ApaHistory(
            samples_within(knobs.scale_down_cooldown_window_ms), values=samples_within(knobs.observe_window_ms)
        )

    def known(self, pool: Pool) -> int:
        """Return the number of workers that report the metric."""
        return pool.load.queue_reporting if pool.knobs.role == "prefill" else pool.load.kv_reporting

    def pool_inputs(self, pool: Pool) -> dict[str, float]:
        """Return the ready workers and the mean of the metric."""
        known = self.known(pool)
        return {"ready": float(pool.ready)} | ({"metric": self._total(pool) / known} if known else {})

    def sync(self, pool: Pool, now: int) -> PoolRecommendation:
        """Recommend the count for the averaged metric, within the rates and the window."""
        history, current = self.histories[pool.name], pool.effective_target(now)
        history.record_external_growth(current, now)
        history.values.push(now, self._total(pool) / self.known(pool))
        proposed, reasons = self._propose(sum(history.values.values) / len(history.values.values), pool, current)
        history.recommendations.push(now, float(proposed))
        if proposed < current:
            proposed, delays = history.highest(proposed, pool, now)
            reasons += delays
            proposed = min(proposed, current)
        recommendation = scale_to(max(1, proposed), tuple(reasons), pool, now)
        history.expected = max(current, recommendation.replicas or 0)
        return recommendation

    def _propose(self, mean: float, pool: Pool, current: int) -> tuple[int, list[Reason]]:
        """Return the count for the mean of the metric, within the rates, with its reasons."""
        knobs, target = self.knobs, self.knobs.target(pool.knobs.role)
        ratio = mean / target
        if 1.0 - knobs.scale_down_tolerance <= ratio <= 1.0 + knobs.scale_up_tolerance:
            tolerance = knobs.scale_up_tolerance if ratio > 1.0 else knobs.scale_down_tolerance
            near = Reason.of(ReasonCode.WITHIN_TOLERANCE, pool.name, value=mean, tolerance=tolerance, target=target)
            return current, [near]
        wanted = math.ceil(round(current * ratio, _DIGITS))
        count = min(wanted, math.ceil(knobs.max_scale_up_rate * current))
        count = max(count, math.floor(current / knobs.max_scale_down_rate))
        code = ReasonCode.WAITING_REQUESTS_TARGET if pool.knobs.role == "prefill" else ReasonCode.KV_USAGE_TARGET
        reasons = [Reason.of(code, pool.name, value=mean, target=target, wanted=wanted)]
        if count != wanted:
            limits = {"wanted": wanted, "allowed": count, "period_ms": knobs.resync_interval_ms}
            reasons.append(Reason.of(ReasonCode.SCALING_POLICY, pool.name, **limits))
        return count, reasons

    def _total(self, pool: Pool) -> float:
        """Return the sum of the metric over the workers that report it."""
        return float(pool.load.waiting) if pool.knobs.role == "prefill" else pool.load.kv_micro / MICRO
