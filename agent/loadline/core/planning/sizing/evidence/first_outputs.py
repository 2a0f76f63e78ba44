"""Output of a request of decode workers while the first ones complete, which are the short ones.

Long requests still run then, so the mean of those that completed is too low: ten seconds after the first arrival, that
of the Azure conversations is 90 instead of 250 tokens. If durations are exponential, their mean is the time that all
requests ran over the number that completed: the maximum-likelihood estimate from censored lifetimes (Lawless,
Statistical Models and Methods for Lifetime Data, 2003, section 4.1). For equal durations it is exact as soon as as many
requests complete as arrive.
"""

from typing import Final

from msgspec import Struct

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.traffic_totals import TrafficTotals

COMPLETED_MIN: Final = 25
"""Completed requests below which the output is not known yet."""
_EARLY_REQUESTS: Final = 4.0
"""Durations of a request since the first arrival after which those that complete are like those that arrive."""
_BUSY_SHARE: Final = 0.75
"""Ratio of the requests that complete in the first second to those that arrive, above which the fleet served before the
agent came: those that complete are then like those that arrive, and the larger of two means is too high by chance."""
_RECENT_REQUESTS: Final = 30.0
"""Completed requests that tell the duration: earlier ones fade."""


class FirstOutputs(Struct):
    """Time that requests ran in decode workers, and the number that completed meanwhile."""

    since_ms: int = -1
    """Time of the first arrivals; -1: none came yet."""
    ended: bool = False
    """True once the requests that complete are like those that arrive."""
    running_ms: float = 0.0
    """Sum over the requests of the time that they ran; as in ``completed``, earlier ones count less."""
    completed: float = 0.0
    total: int = 0
    """Requests that completed since the first arrivals."""
    itl_ms: float = 0.0
    """Mean ITL of the second in which requests completed last."""

    def osl_tokens(self, model: Model, interval: TrafficTotals, now: int) -> float:
        """Record a second; return the mean output of a request at least, 0 if unknown or no longer needed.

        In an aggregated pool, running requests may still wait for their prompts, so nothing follows from their number.
        Only time that reports of frontends cover counts: of other time it is unknown how many requests completed, so
        after half a minute without frontends the output seemed to be 2,200 instead of 250 tokens.
        """
        if self.ended:
            return 0.0
        if self.since_ms < 0:
            self.since_ms = now if interval.arrivals else -1
            is_busy = interval.completed > _BUSY_SHARE * interval.arrivals
            self.ended = is_busy or any(pool.knobs.role == "aggregated" for pool in model.pools.values())
            return 0.0
        running = sum(pool.load.running for pool in model.pools.values() if pool.knobs.role == "decode")
        faded = max(0.0, 1.0 - interval.completed / _RECENT_REQUESTS)
        self.running_ms = faded * self.running_ms + running * interval.observed_ms
        self.completed = faded * self.completed + interval.completed
        self.total += interval.completed
        self.itl_ms = interval.itl_ms.value or self.itl_ms
        if not self.itl_ms or self.total < COMPLETED_MIN:
            return 0.0
        request_ms = min(self.running_ms / self.completed, now - self.since_ms)  # none has run for longer
        self.ended = now - self.since_ms >= _EARLY_REQUESTS * request_ms
        return request_ms / self.itl_ms
