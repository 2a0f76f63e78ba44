"""Traffic of one model by second."""

from msgspec import Struct

from loadline.core.vocabulary.samples import TrafficSample

BUCKET_MS = 1_000


class TrafficBucket(Struct):
    """Sums over one second. A report over several seconds is divided among their buckets."""

    at_ms: int
    observed_ms: int = 0
    """Time covered by reports, in ms."""
    arrivals: int = 0
    isl_sum: float = 0.0
    isl_count: int = 0
    cached_sum: float = 0.0
    osl_sum: float = 0.0
    osl_count: int = 0
    ttft_sum: float = 0.0
    ttft_count: int = 0
    itl_sum: float = 0.0
    itl_count: int = 0
    ttft_met: float = 0.0
    """Requests within the TTFT objective, of ``ttft_judged``."""
    ttft_judged: int = 0
    itl_met: float = 0.0
    itl_judged: int = 0
    both_met: float = 0.0
    both_judged: int = 0

    def add(self, sample: TrafficSample, observed_ms: int, arrivals: int, completed: int) -> None:
        """Add a part of a report: ``observed_ms`` of its time and some of its requests, with its mean values."""
        self.observed_ms += observed_ms
        self.arrivals += arrivals
        if sample.isl_tokens is not None and arrivals:
            self.isl_sum += sample.isl_tokens * arrivals
            self.isl_count += arrivals
            self.cached_sum += (sample.kv_hit_rate or 0.0) * sample.isl_tokens * arrivals
        if completed:
            if sample.osl_tokens is not None:
                self.osl_sum += sample.osl_tokens * completed
                self.osl_count += completed
            if sample.ttft_ms is not None:
                self.ttft_sum += sample.ttft_ms * completed
                self.ttft_count += completed
            if sample.itl_ms is not None:
                self.itl_sum += sample.itl_ms * completed
                self.itl_count += completed
            if sample.ttft_met is not None:
                self.ttft_met += sample.ttft_met / sample.completed * completed
                self.ttft_judged += completed
            if sample.itl_met is not None:
                self.itl_met += sample.itl_met / sample.completed * completed
                self.itl_judged += completed
            if sample.both_met is not None:
                self.both_met += sample.both_met / sample.completed * completed
                self.both_judged += completed
