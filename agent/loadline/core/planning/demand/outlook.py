"""Expected traffic, and detection of traffic above it."""

from math import sqrt
from typing import Final

from msgspec import Struct

from loadline.core.engines.lengths import LengthDistribution, computed_isl
from loadline.core.fleet.traffic import RecentArrivals

_SIGMAS: Final = 2.0
"""Traffic exceeds the outlook if the recent rate is this many standard deviations above it."""


class Outlook(Struct, frozen=True):
    """Expected requests and their mean lengths; a length is None until a request has finished."""

    requests_per_s: float
    """Weighted rate: prompts longer than expected count as more than one request."""
    isl_tokens: float | None
    osl_tokens: float | None
    kv_hit_rate: float = 0.0
    """Fraction of the prompt tokens found in prefix caches."""
    decode_share: float = 1.0
    """Rate of requests to decode, as a fraction of ``requests_per_s``: a long prompt counts as one there."""
    decode_peak: float = 1.0
    """Ratio of the rate of requests to decode to its mean over the interval or burst."""

    @property
    def numbers(self) -> dict[str, float]:
        """Rate and lengths for a reason; 0 for an unknown length."""
        lengths = {"isl_tokens": self.isl_tokens or 0.0, "osl_tokens": self.osl_tokens or 0.0}
        return {"requests_per_s": self.requests_per_s} | lengths

    @property
    def inputs(self) -> dict[str, float]:
        """Rate, known lengths and hit rate, for the inputs of a recommendation."""
        lengths = {"isl_tokens": self.isl_tokens, "osl_tokens": self.osl_tokens}
        known = {name: value for name, value in lengths.items() if value is not None}
        return {"requests_per_s": self.requests_per_s} | known | {"kv_hit_rate": self.kv_hit_rate}

    def is_exceeded_by(self, recent: RecentArrivals, isl_spread: float) -> bool:
        """Return True if requests or uncached prompt tokens arrive significantly faster than expected.

        Args:
            recent: Traffic of the last seconds.
            isl_spread: ``1 + cv^2`` of the prompt lengths: the variance of their sum relative to that of their number.
        """
        if not recent.arrivals:
            return False
        confidence = max(0.0, 1.0 - _SIGMAS / sqrt(recent.arrivals))
        if recent.requests_per_s * confidence > self.requests_per_s * self.decode_share:
            return True
        if recent.isl_tokens is None or self.isl_tokens is None:
            return False
        # Lengths vary between requests, and their mean between seconds: one long prompt is no surge.
        confidence = max(0.0, 1.0 - _SIGMAS * max(sqrt(isl_spread / recent.arrivals), recent.computed_relative_error))
        computed = recent.requests_per_s * computed_isl(recent.isl_tokens, recent.kv_hit_rate)
        return computed * confidence > self.requests_per_s * computed_isl(self.isl_tokens, self.kv_hit_rate)


class TrafficLoad(Struct, frozen=True):
    """Traffic to size pools for: an outlook with its length distributions."""

    outlook: Outlook
    isl: LengthDistribution
    osl: LengthDistribution
    is_surge: bool = False
    """True if measured over seconds, which may not be representative; it only adds workers."""
