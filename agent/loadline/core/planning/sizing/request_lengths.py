"""Mean lengths of recent requests, and the work that they cause."""

from typing import Final

from msgspec import Struct

from loadline.core.fleet.traffic_totals import RunningMean, TrafficTotals
from loadline.core.vocabulary.scalars import Role

OUTPUT_WEIGHT: Final = 4.0
"""Prompt tokens that take as long as one output token of a full batch: 2.8 in Dynamo's mock engine, 3 to 6 in the
measured profiles of 8B and 70B models."""


class Lengths(Struct):
    """Mean lengths of recent requests; 0 while unknown."""

    isl_tokens: float = 0.0
    osl_tokens: float = 0.0

    def add(self, interval: TrafficTotals) -> None:
        """Add the requests of an interval."""
        self.isl_tokens = _moved(self.isl_tokens, interval.isl_tokens)
        self.osl_tokens = _moved(self.osl_tokens, interval.osl_tokens)

    def work(self, role: Role) -> float:
        """Return the work of a request for a role, in prompt tokens, or in output tokens for decode."""
        if role == "prefill":
            return self.isl_tokens
        return self.osl_tokens if role == "decode" else self.isl_tokens + OUTPUT_WEIGHT * self.osl_tokens


def _moved(mean: float, new: RunningMean) -> float:
    """Return an exponential mean over about 300 requests."""
    if new.value is None:
        return mean
    return mean + (new.value - mean) * min(1.0, new.count / 300.0 + 0.01) if mean else new.value
