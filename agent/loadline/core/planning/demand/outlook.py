"""Traffic to be ready for, and the detection of traffic beyond it."""

from math import sqrt
from typing import Final

from msgspec import Struct

from loadline.core.engines.lengths import LengthDistribution, computed_isl
from loadline.core.fleet.traffic import RecentArrivals

_SIGMAS: Final = 2.0
"""Traffic has risen when the recent rate is this many standard deviations above the outlook."""


class Outlook(Struct, frozen=True):
    """Requests to be ready for, and their mean lengths; a length is None where no request has finished yet."""

    requests_per_s: float
    """Weighted: prompts that are longer than usual count for more."""
    isl_tokens: float | None
    osl_tokens: float | None
    kv_hit_rate: float = 0.0
    """Share (0..1) of the prompt tokens that prefix caches hold."""
    decode_share: float = 1.0
    """Requests that decode, as a share of ``requests_per_s``: a long prompt is one request for decode."""
    decode_peak: float = 1.0
    """That rate divided by the mean that it swings around: of its interval, or of a burst."""

    @property
    def numbers(self) -> dict[str, float]:
        """Rate and lengths, as the numbers of a reason."""
        lengths = {"isl_tokens": self.isl_tokens or 0.0, "osl_tokens": self.osl_tokens or 0.0}
        return {"requests_per_s": self.requests_per_s} | lengths

    @property
    def inputs(self) -> dict[str, float]:
        """Rate, known lengths and hit rate, as the inputs of a recommendation."""
        lengths = {"isl_tokens": self.isl_tokens, "osl_tokens": self.osl_tokens}
        known = {name: value for name, value in lengths.items() if value is not None}
        return {"requests_per_s": self.requests_per_s} | known | {"kv_hit_rate": self.kv_hit_rate}

    def is_exceeded_by(self, recent: RecentArrivals, isl_spread: float) -> bool:
        """Return whether requests or uncached prompt tokens arrive faster than this, beyond chance.

        Args:
            recent: The traffic of the last seconds.
            isl_spread: ``1 + cv^2`` of the prompt lengths: their sum varies that much more than their number.
        """
        if not recent.arrivals:
            return False
        surely = max(0.0, 1.0 - _SIGMAS / sqrt(recent.arrivals))
        if recent.requests_per_s * surely > self.requests_per_s * self.decode_share:
            return True
        if recent.isl_tokens is None or self.isl_tokens is None:
            return False
        # Lengths differ from request to request, and from second to second: one long prompt is no surge.
        surely = max(0.0, 1.0 - _SIGMAS * max(sqrt(isl_spread / recent.arrivals), recent.computed_relative_error))
        computed = recent.requests_per_s * computed_isl(recent.isl_tokens, recent.kv_hit_rate)
        return computed * surely > self.requests_per_s * computed_isl(self.isl_tokens, self.kv_hit_rate)


class TrafficLoad(Struct, frozen=True):
    """An outlook with the distributions of its lengths: the traffic to size pools for."""

    outlook: Outlook
    isl: LengthDistribution
    osl: LengthDistribution
    is_surge: bool = False
    """Measured over seconds, so it may be untypical: it only adds workers."""
