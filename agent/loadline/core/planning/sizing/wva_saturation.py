"""The saturation planner by the rules of llm-d's Workload Variant Autoscaler 0.4.1, as a baseline.

Once in an interval the peaks of the last minute are judged: one worker more or less, see ``models/saturation.py``. What
it does not know it takes for idle, as the original does.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingMax
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.recommendation import PoolRecommendation, scale_to
from loadline.core.planning.sizing.saturation_rules import Reading, Thresholds, Variant, analyse, step
from loadline.core.vocabulary.reasons import Reason, ReasonCode

PEAK_MS: Final = 60_000
"""The original asks for the maximum of a minute."""


class Peak(Struct):
    """The highest values of one worker."""

    kv_micro: RollingMax
    waiting: RollingMax


class Spare(Struct):
    """What is remembered between two looks."""

    interval_ms: int
    peaks: dict[str, dict[str, Peak]] = field(default_factory=dict)
    """By pool and worker."""
    said: dict[str, PoolRecommendation] = field(default_factory=dict)
    next_ms: dict[str, int] = field(default_factory=dict)
    """By role: when it is looked at again."""

    def judge(self, pools: Sequence[Pool], thresholds: Thresholds, now: int) -> dict[str, PoolRecommendation]:
        """What is said of the pools of one role: until the next look the same again."""
        for pool in pools:
            self._note(pool, now)
        role = pools[0].knobs.role
        if now >= self.next_ms.get(role, now):
            self.next_ms[role] = now + self.interval_ms
            self._look(pools, thresholds, now)
        return {pool.name: self.said[pool.name] for pool in pools}

    def _note(self, pool: Pool, now: int) -> None:
        kept = self.peaks.setdefault(pool.name, {})
        for name in pool.changed:
            worker = pool.workers.get(name)
            if worker is not None and worker.counted:
                peak = kept.get(name)
                if peak is None:
                    peak = kept[name] = Peak(RollingMax(PEAK_MS), RollingMax(PEAK_MS))
                peak.kv_micro.push(now, worker.load.kv_micro)
                peak.waiting.push(now, worker.load.waiting)

    def _look(self, pools: Sequence[Pool], thresholds: Thresholds, now: int) -> None:
        readings: list[Reading] = []
        variants: list[Variant] = []
        for pool in pools:
            kept = self.peaks[pool.name] = {
                name: peak
                for name, peak in self.peaks[pool.name].items()
                if name in pool.workers and pool.workers[name].counted
            }
            readings += [
                Reading((peak.kv_micro.max(now) or 0) / MICRO, peak.waiting.max(now) or 0) for peak in kept.values()
            ]
            if kept:
                cost = pool.cost_per_hour
                variants.append(
                    Variant(pool.name, cost, len(kept), pool.expected_workers(now), pool.effective_target(now))
                )
        found = analyse(readings, thresholds)
        counts = step(variants, found)
        for pool in pools:
            standing = pool.effective_target(now)
            reason = Reason.of(
                ReasonCode.SPARE_CAPACITY,
                pool.name,
                kv=found.spare_kv,
                waiting=found.spare_waiting,
                unsaturated=found.unsaturated,
                workers=found.workers,
                wanted=counts.get(pool.name, standing),
            )
            self.said[pool.name] = scale_to(counts.get(pool.name, standing), (reason,), pool, now)
