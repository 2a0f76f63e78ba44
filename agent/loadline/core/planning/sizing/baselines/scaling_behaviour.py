"""Scaling behaviour of a Horizontal Pod Autoscaler, the ``behavior`` of ``autoscaling/v2``.

A proposal is first stabilised: a scale-up takes the lowest recommendation of one window, a scale-down the highest one
of another. Then a policy bounds the change within a period, from the count at its start.
"""

import math

from msgspec import Struct

from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingSamples
from loadline.core.vocabulary.reasons import Reason, ReasonCode


class ScalingPolicy(Struct, frozen=True):
    """Largest change within a period: a percentage of the count at its start, or workers, whichever is more."""

    percent: int
    workers: int
    period_ms: int


class ScalingBehaviour(Struct, frozen=True):
    """Stabilisation windows and policies of both directions."""

    up_window_ms: int
    down_window_ms: int
    up: ScalingPolicy
    down: ScalingPolicy

    @property
    def window_ms(self) -> int:
        """Length of the longer stabilisation window."""
        return max(self.up_window_ms, self.down_window_ms)

    @property
    def period_ms(self) -> int:
        """Length of the longer period."""
        return max(self.up.period_ms, self.down.period_ms)

    def stabilise(
        self, proposed: int, current: int, recommendations: RollingSamples, pool: Pool, now: int
    ) -> tuple[int, list[Reason]]:
        """Bound a proposal by the recommendations of the windows, with the reason if that changes it."""
        lowest = int(min([*_younger(recommendations, self.up_window_ms, now), proposed]))
        highest = int(max([*_younger(recommendations, self.down_window_ms, now), proposed]))
        allowed = min(max(current, lowest), highest)
        if allowed == proposed:
            return proposed, []
        rising = proposed > current
        code = ReasonCode.LOWEST_RECOMMENDATION if rising else ReasonCode.HIGHEST_RECOMMENDATION
        window_ms = self.up_window_ms if rising else self.down_window_ms
        samples = zip(recommendations.at_ms, recommendations.values, strict=True)
        holding = (at for at, sample in samples if (sample <= allowed if rising else sample >= allowed))
        left_ms = max(holding, default=now) + window_ms - now
        numbers = {"wanted": proposed, "allowed": allowed, "window_ms": window_ms, "left_ms": left_ms}
        return allowed, [Reason.of(code, pool.name, **numbers)]

    def limit(
        self, proposed: int, current: int, counts: RollingSamples, pool: Pool, now: int
    ) -> tuple[int, list[Reason]]:
        """Bound a proposal by the policies, with the reason if that changes it.

        Args:
            proposed: The stabilised proposal.
            current: Count in force.
            counts: Counts in force at the syncs of the longer period, before the changes of these syncs.
            pool: The pool.
            now: Unix time in ms.
        """
        policy = self.up if proposed > current else self.down
        start = next(iter(_younger(counts, policy.period_ms, now)), float(current))
        share = policy.percent / 100.0
        if proposed > current:
            allowed = min(proposed, max(math.ceil(start * (1.0 + share)), int(start) + policy.workers, current))
        else:
            allowed = max(proposed, min(int(start * (1.0 - share)), int(start) - policy.workers, current))
        if allowed == proposed:
            return proposed, []
        numbers = {"wanted": proposed, "allowed": allowed, "period_ms": policy.period_ms}
        return allowed, [Reason.of(ReasonCode.SCALING_POLICY, pool.name, **numbers)]


def _younger(samples: RollingSamples, window_ms: int, now: int) -> list[float]:
    """Return the samples younger than a window."""
    return [value for at_ms, value in zip(samples.at_ms, samples.values, strict=True) if at_ms > now - window_ms]
