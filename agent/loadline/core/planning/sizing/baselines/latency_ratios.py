"""Ratio of the latencies of a pool to their objectives, as a smoothed signal: the recording rules of llm-d's SLO guide.

The signal is the worse of P90 TTFT and P90 ITL of a minute, each over its objective, cut at 2 and averaged over 45 s.
Without new latencies it is 0. Source: ``docs/architecture/advanced/autoscaling/slo-aware-keda.md`` of llm-d/llm-d.
"""

import math
from typing import Final

from msgspec import Struct, field

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingSamples
from loadline.core.planning.recommendation import samples_within

_WINDOW_MS: Final = 60_000
_SMOOTHING_MS: Final = 45_000
_QUANTILE: Final = 0.9
_RATIO_MAX: Final = 2.0


class LastReport(Struct):
    """Newest report of one rank."""

    sequence: int
    ttft_ms: float | None


class LatencyRatios(Struct):
    """Latencies that the workers of one pool report, over their objectives."""

    ttfts: RollingSamples = field(default_factory=lambda: samples_within(_WINDOW_MS))
    itls: RollingSamples = field(default_factory=lambda: samples_within(_WINDOW_MS))
    signal: RollingSamples = field(default_factory=lambda: samples_within(_SMOOTHING_MS))
    """Worse P90 at each sync."""
    reports: dict[str, LastReport] = {}
    """Newest report by worker and rank."""
    is_known: bool = False
    """True once a worker has reported a latency."""

    def observe(self, pool: Pool, objectives: ObjectiveKnobs, now: int) -> None:
        """Record the latencies that were not reported before."""
        self.ttfts.prune(now)
        self.itls.prune(now)
        for name in pool.changed:
            worker = pool.workers.get(name)
            samples = [] if worker is None else [sample for sample in worker.latest if sample is not None]
            for sample in samples:
                place = f"{name}/{sample.rank}"
                last = self.reports.get(place, LastReport(-1, None))
                if sample.sequence == last.sequence:
                    continue
                self.reports[place] = LastReport(sample.sequence, sample.ttft_ms)
                # A rank repeats its last TTFT until it has a new one.
                if sample.ttft_ms and sample.ttft_ms != last.ttft_ms and pool.knobs.role != "decode":
                    self.ttfts.push(now, sample.ttft_ms / objectives.ttft_ms)
                if sample.itl_ms and sample.running_requests and pool.knobs.role != "prefill":
                    self.itls.push(now, sample.itl_ms / objectives.itl_ms)
        self.is_known = self.is_known or bool(self.ttfts.values or self.itls.values)
        if len(self.reports) > sum(len(worker.latest) for worker in pool.workers.values()):
            known = pool.workers
            self.reports = {place: one for place, one in self.reports.items() if place.rpartition("/")[0] in known}

    def smoothed(self, now: int) -> float:
        """Add the present signal and return its mean; called at each sync."""
        self.signal.push(now, min(max(_high(self.ttfts.values), _high(self.itls.values)), _RATIO_MAX))
        return sum(self.signal.values) / len(self.signal.values)


def _high(ratios: list[float]) -> float:
    """Return the P90; 0 without values."""
    return sorted(ratios)[math.ceil(_QUANTILE * len(ratios)) - 1] if ratios else 0.0
