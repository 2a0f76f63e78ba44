"""KEDA planner: the autoscaling rules of llm-d's guides for KEDA and the endpoint picker (EPP), as a baseline.

Each rule is a ``ScaledObject`` with the triggers below. The HPA behind it proposes ``ceil(value / target)`` workers per
trigger, or the current target if the value is within 10 % of ``target x count``, and takes the highest. KEDA's metrics
are external, so pending workers count in full.

- ``queue``: requests that flow control holds, target 1; dispatched requests, target 16. The lowest proposal of the
  start-up time is used for growth (``keda-epp/optimized-baseline/overlays/k8s/queue``).
- ``saturation``: pool saturation, target 0.7, and dispatched requests as above. Saturation is a mean and not a sum, so
  this trigger alone proposes more than two workers only for a saturation above 1.4 (``overlays/k8s/saturation``).
- ``tokens``: seconds of prefill that all waiting prompts take one worker, target ``backlog_s``; sum of KV usage, target
  0.8. A prefill pool has the first trigger and a decode pool the second one. One worker is added in three minutes and
  one removed in five (``keda-epp-token-aware``).
- ``latency``: P90 latencies of a minute over their objectives, the worse of TTFT and ITL, cut at 2 and averaged over 45
  s. With this signal ``s``, the count ``n`` and the ready workers ``r``, the rule proposes ``n + ceil(n (s c / 0.55 -
  1))`` for ``s`` above 0.55, where ``c = r / n`` while workers start, ``n - floor(n (1 - s / 0.4))`` below 0.4, and
  ``n`` between (``slo-aware``, with measured instead of predicted latencies). A prefill pool is scaled by TTFT and a
  decode pool by ITL, as the guide suggests.

All folders are in ``guides/workload-autoscaling`` of llm-d/llm-d, read in November 2026. The guides scale one
Deployment; here the rule applies to each pool. None scales to zero.
"""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from loadline.core.fleet.estimates import estimates_prompts
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.planner import ModelSettings, Needs
from loadline.core.planning.recommendation import PoolRecommendation, hold, samples_within, scale_to
from loadline.core.planning.sizing.baselines.epp_signals import (
    dispatched_requests,
    held_requests,
    pool_saturation,
    prompt_tokens,
)
from loadline.core.planning.sizing.baselines.latency_ratios import LatencyRatios
from loadline.core.planning.sizing.baselines.scaling_behaviour import ScalingBehaviour, ScalingPolicy
from loadline.core.planning.synced import SyncedPlanner, SyncHistory
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode

Rule = Literal["queue", "saturation", "tokens", "latency"]

_TOLERANCE: Final = 0.1
_DIGITS: Final = 9
_HELD_TARGET: Final = 1.0
_SATURATION_TARGET: Final = 0.7
_KV_USAGE_TARGET: Final = 0.8
_RATIO_HIGH: Final = 0.55
_RATIO_LOW: Final = 0.4


class KedaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the KEDA planner: its rule, and the values that llm-d's guides tell users to calibrate."""

    rule: Annotated[
        Rule,
        Meta(description="Signal: queue and saturation of the endpoint picker, prompt tokens, or latency objectives."),
    ] = "queue"
    sync_interval_ms: Annotated[int, Meta(ge=1_000, description="Time between two evaluations.")] = 15_000
    start_up_ms: Annotated[
        int,
        Meta(ge=0, le=3_600_000, description="Start-up time: queue and saturation grow by the lowest proposal of it."),
    ] = 300_000
    running_requests_target: Annotated[
        float, Meta(gt=0, le=1_000_000, description="Dispatched requests per worker, for queue and saturation.")
    ] = 16.0
    prefill_tokens_per_s: Annotated[
        float, Meta(gt=0, le=1e9, description="Prompt tokens that a worker computes in a second, for tokens.")
    ] = 15_928.0
    backlog_s: Annotated[
        float,
        Meta(gt=0, le=3_600, description="Prefill time of the waiting prompts per worker, for tokens: TTFT less ISL."),
    ] = 1.5

    @property
    def behaviour(self) -> ScalingBehaviour:
        """Stabilisation and policies of the rule."""
        if self.rule == "tokens":
            return ScalingBehaviour(0, 300_000, ScalingPolicy(0, 1, 180_000), ScalingPolicy(0, 1, 300_000))
        if self.rule == "latency":
            return ScalingBehaviour(30_000, 180_000, ScalingPolicy(100, 4, 60_000), ScalingPolicy(0, 1, 120_000))
        doubling = ScalingPolicy(100, 0, 15_000)
        return ScalingBehaviour(self.start_up_ms, 300_000, doubling, doubling)


class Trigger(Struct, frozen=True):
    """Trigger of a rule: its value over all workers, and its target per worker."""

    code: ReasonCode
    value: float
    target: float
    reporting: int
    """Workers that report what the value is made of; 0: it is unknown."""
    reported: dict[str, float] = {}
    """Numbers of the reason that differ from these."""
    is_count: bool = False
    """True if the value is a count already, by a rule of its own."""

    def propose(self, pool: Pool, current: int) -> tuple[int, Reason]:
        """Return the count that the trigger proposes, with the reason."""
        near = abs(self.value / (self.target * max(current, 1)) - 1.0) <= _TOLERANCE
        if near and not self.is_count:
            numbers = {"value": self.value / max(current, 1), "tolerance": _TOLERANCE, "target": self.target}
            return current, Reason.of(ReasonCode.WITHIN_TOLERANCE, pool.name, **numbers)
        wanted = current if near else max(1, math.ceil(round(self.value / self.target, _DIGITS)))
        numbers = {"value": self.value, "target": self.target} | self.reported | {"wanted": float(wanted)}
        return wanted, Reason.of(self.code, pool.name, **numbers)


class KedaHistory(SyncHistory, kw_only=True):
    """State of one pool between syncs."""

    counts: RollingSamples
    """Counts in force at the syncs."""
    latencies: LatencyRatios = field(default_factory=LatencyRatios)
    isl_tokens: float = 0.0
    """Mean prompt length of the model; 0: unknown."""


class KedaPlanner(SyncedPlanner):
    """Planner that scales each pool by the triggers of one of llm-d's rules."""

    name = "keda"
    summary = "llm-d's rules for KEDA and its endpoint picker: queue, saturation, prompt tokens or latency."
    group = "baseline"
    Knobs = KedaKnobs
    needs: ClassVar[Needs] = Needs(objectives=frozenset({"ttft_ms", "itl_ms"}))

    knobs: KedaKnobs
    histories: dict[str, KedaHistory] = field(default_factory=dict)

    @classmethod
    def describe(cls, knobs: KedaKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the targets of a pool, and the limits of a change."""
        every = f"Every {duration(knobs.sync_interval_ms)}, sizes for"
        if knobs.rule == "latency":
            yield f"{every} P90 latencies between {_RATIO_LOW:.0%} and {_RATIO_HIGH:.0%} of their objectives."
        elif knobs.rule == "tokens":
            targets = {
                f"{knobs.backlog_s:g} s of waiting prompts": pool.role != "decode",
                f"a KV usage of {_KV_USAGE_TARGET:g}": pool.role != "prefill",
            }
            yield f"{every} {' and '.join(text for text, applies in targets.items() if applies)} per worker."
        else:
            running = f"{knobs.running_requests_target:g} requests per worker"
            held = (
                f"{_HELD_TARGET:g} held request per worker"
                if knobs.rule == "queue"
                else f"a saturation of {_SATURATION_TARGET:g}"
            )
            yield f"{every} {running} and {held}."
        behaviour = knobs.behaviour
        yield (
            f"Scales up to the lowest recommendation of the last {duration(behaviour.up_window_ms)}, and down to the "
            f"highest of the last {duration(behaviour.down_window_ms)}."
        )

    def on_settings_change(self, before: KedaKnobs) -> None:  # noqa: ARG002 - any change has the same effect
        """Resize the windows; the next evaluation is a sync."""
        self.next_sync_ms = 0
        for history in self.histories.values():
            fresh = self.new_history()
            history.recommendations.window_ms = fresh.recommendations.window_ms
            history.counts.window_ms = fresh.counts.window_ms

    @property
    def sync_ms(self) -> int:
        """Time between two syncs."""
        return self.knobs.sync_interval_ms

    def new_history(self) -> KedaHistory:
        """Return a history with empty windows."""
        behaviour = self.knobs.behaviour
        return KedaHistory(samples_within(behaviour.window_ms), counts=samples_within(behaviour.period_ms))

    def known(self, pool: Pool) -> int:
        """Return the number of workers that may report what the rule needs; each sync looks at its triggers."""
        return pool.load.queue_reporting if self.knobs.rule in {"queue", "saturation"} else pool.fresh

    def pool_inputs(self, pool: Pool) -> dict[str, float]:
        """Return the ready workers and the requests at them, and whether their prompt tokens are estimates."""
        found = {"ready": float(pool.ready), "in_flight": float(pool.load.waiting + pool.load.running)}
        estimated = self.knobs.rule == "tokens" and pool.knobs.role != "decode" and estimates_prompts(pool)
        return found | ({"prefill_tokens_estimated": 1.0} if estimated else {})

    def observe(self, model: Model, pool: Pool, now: int) -> None:
        """Record the mean prompt length, and the latencies that workers report, if the rule uses them."""
        history = self.histories[pool.name]
        history.isl_tokens = model.traffic.totals.isl_tokens.value or 0.0
        if self.knobs.rule == "latency":
            history.latencies.observe(pool, model.objectives, now)

    def sync(self, pool: Pool, now: int) -> PoolRecommendation:
        """Recommend the highest proposal of all triggers, within the behaviour of the rule."""
        history, behaviour, current = self.histories[pool.name], self.knobs.behaviour, pool.effective_target(now)
        history.record_external_growth(current, now)
        history.counts.push(now, float(current))
        triggers = list(self._triggers(pool, now))
        known = [trigger for trigger in triggers if trigger.reporting]
        if not known:
            history.recommendations.push(now, float(current))  # the next one must not scale down at once
            recommendation = hold(ReasonCode.NO_DATA, pool, fresh=pool.fresh, ready=pool.ready, known=0)
        else:
            proposed, reason = max((one.propose(pool, current) for one in known), key=lambda proposal: proposal[0])
            if proposed < current and len(known) < len(triggers):
                numbers = {"known": len(known), "metrics": len(triggers), "wanted": proposed}
                recommendation = hold(ReasonCode.METRIC_MISSING, pool, **numbers)
            else:
                history.recommendations.push(now, float(proposed))
                stable, delays = behaviour.stabilise(proposed, current, history.recommendations, pool, now)
                count, limits = behaviour.limit(stable, current, history.counts, pool, now)
                recommendation = scale_to(max(1, count), (reason, *delays, *limits), pool, now)
        history.expected = max(current, recommendation.replicas or 0)
        return recommendation

    def _triggers(self, pool: Pool, now: int) -> Iterator[Trigger]:
        """Yield the triggers of the rule that apply to the role of a pool."""
        knobs, load, role = self.knobs, pool.load, pool.knobs.role
        if knobs.rule == "latency":
            yield self._latency_trigger(pool, now)
            return
        if knobs.rule == "tokens":
            if role != "decode":
                tokens, reporting = prompt_tokens(pool, self.histories[pool.name].isl_tokens)
                seconds = tokens / knobs.prefill_tokens_per_s
                yield Trigger(ReasonCode.PREFILL_BACKLOG, seconds, knobs.backlog_s, reporting)
            if role != "prefill":
                usage, reporting = load.kv_micro / MICRO, load.kv_reporting
                mean = {"value": usage / max(reporting, 1)}
                yield Trigger(ReasonCode.KV_USAGE_TARGET, usage, _KV_USAGE_TARGET, reporting, mean)
            return
        if knobs.rule == "queue":
            yield Trigger(ReasonCode.FLOW_CONTROL_QUEUE, held_requests(pool), _HELD_TARGET, load.queue_reporting)
        else:
            yield Trigger(ReasonCode.POOL_SATURATION, pool_saturation(pool), _SATURATION_TARGET, load.queue_reporting)
        running, target = dispatched_requests(pool), knobs.running_requests_target
        numbers = {"concurrency": running}
        yield Trigger(ReasonCode.CONCURRENCY_TARGET, running, target, load.queue_reporting, numbers)

    def _latency_trigger(self, pool: Pool, now: int) -> Trigger:
        """Return the count of the control law as the value of a trigger with target 1."""
        latencies = self.histories[pool.name].latencies
        ratio = latencies.smoothed(now)
        count = controlled_count(ratio, pool.effective_target(now), pool.ready)
        reporting = pool.fresh if latencies.is_known or not pool.load.waiting + pool.load.running else 0
        reported = {"value": ratio, "low": _RATIO_LOW, "high": _RATIO_HIGH}
        return Trigger(ReasonCode.LATENCY_RATIO, float(count), 1.0, reporting, reported, is_count=True)


def controlled_count(ratio: float, count: int, ready: int) -> int:
    """Return the count that the control law of the rule ``latency`` requests.

    Args:
        ratio: Smoothed ratio of latencies to their objectives.
        count: Count in force.
        ready: Ready workers, which the ratio is measured at.
    """
    if ratio > _RATIO_HIGH:
        credit = ready / count if 0 < ready < count else 1.0
        return count + math.ceil(round(count * (ratio * credit / _RATIO_HIGH - 1.0), _DIGITS))
    if ratio < _RATIO_LOW:
        return count - math.floor(round(count * (1.0 - ratio / _RATIO_LOW), _DIGITS))
    return count
