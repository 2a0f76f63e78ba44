"""Saturation planner by the rules of llm-d's Workload Variant Autoscaler 0.4.1, as a baseline.

Once per interval the peaks of the last minute are evaluated by ``rules``, which change at most one worker.
Unknown values count as idle, as in the original.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingMax
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.recommendation import PoolRecommendation, scale_to
from loadline.core.planning.sizing.saturation.rules import Reading, SaturationThresholds, Variant, analyse, step
from loadline.core.vocabulary.reasons import Reason, ReasonCode

PEAK_MS: Final = 60_000
"""Window of the peaks; the original queries the maximum over a minute."""


class WorkerPeaks(Struct):
    """Highest recent values of one worker."""

    kv_micro: RollingMax
    waiting: RollingMax


class WvaSaturation(Struct):
    """Peaks of the workers, and the recommendations of the last evaluation."""

    interval_ms: int
    peaks: dict[str, dict[str, WorkerPeaks]] = field(default_factory=dict)
    """Peaks by pool and worker."""
    recommendations: dict[str, PoolRecommendation] = field(default_factory=dict)
    next_ms: dict[str, int] = field(default_factory=dict)
    """Time of the next evaluation by role."""

    def recommend(
        self, pools: Sequence[Pool], thresholds: SaturationThresholds, now: int
    ) -> dict[str, PoolRecommendation]:
        """Return the recommendations for the pools of one role; they change only once per interval."""
        for pool in pools:
            self._record(pool, now)
        role = pools[0].knobs.role
        if now >= self.next_ms.get(role, now):
            self.next_ms[role] = now + self.interval_ms
            self._evaluate(pools, thresholds, now)
        return {pool.name: self.recommendations[pool.name] for pool in pools}

    def _record(self, pool: Pool, now: int) -> None:
        peaks = self.peaks.setdefault(pool.name, {})
        for name in pool.changed:
            worker = pool.workers.get(name)
            if worker is not None and worker.counted:
                peak = peaks.get(name)
                if peak is None:
                    peak = peaks[name] = WorkerPeaks(RollingMax(PEAK_MS), RollingMax(PEAK_MS))
                peak.kv_micro.push(now, worker.load.kv_micro)
                peak.waiting.push(now, worker.load.waiting)

    def _evaluate(self, pools: Sequence[Pool], thresholds: SaturationThresholds, now: int) -> None:
        readings: list[Reading] = []
        variants: list[Variant] = []
        for pool in pools:
            peaks = self.peaks[pool.name] = {
                name: peak
                for name, peak in self.peaks[pool.name].items()
                if name in pool.workers and pool.workers[name].counted
            }
            readings += [
                Reading((peak.kv_micro.max(now) or 0) / MICRO, peak.waiting.max(now) or 0) for peak in peaks.values()
            ]
            if peaks:
                cost = pool.cost_per_hour
                variants.append(
                    Variant(pool.name, cost, len(peaks), pool.expected_workers(now), pool.effective_target(now))
                )
        analysis = analyse(readings, thresholds)
        counts = step(variants, analysis)
        for pool in pools:
            current = pool.effective_target(now)
            reason = Reason.of(
                ReasonCode.HEADROOM_CAPACITY,
                pool.name,
                kv=analysis.kv_headroom,
                waiting=analysis.queue_headroom,
                unsaturated=analysis.unsaturated,
                workers=analysis.workers,
                wanted=counts.get(pool.name, current),
            )
            self.recommendations[pool.name] = scale_to(counts.get(pool.name, current), (reason,), pool, now)
