"""Mean lengths of recent requests, and the work that they cause."""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.traffic_totals import RunningMean, TrafficTotals
from loadline.core.vocabulary.scalars import Role

OUTPUT_WEIGHT: Final = 4.0
"""Prompt tokens that take as long as one output token of a full batch: 2.8 in Dynamo's mock engine, 3 to 6 in the
measured profiles of 8B and 70B models."""
_RECENT_REQUESTS: Final = 300
_LASTING_SAMPLES: Final = 150
"""Samples of the lasting means: 150 s, since the mean output of a chat changes by half within a minute by chance."""


class Lengths(Struct):
    """Mean lengths of recent requests, and of those of some minutes; 0 while unknown."""

    isl_tokens: float = 0.0
    osl_tokens: float = 0.0
    lasting_isl_tokens: float = 0.0
    lasting_osl_tokens: float = 0.0
    samples: int = 0
    """Samples with requests, up to the number of the lasting means."""
    isl_requests: int = 0
    """Requests that arrived, up to ``_RECENT_REQUESTS``: while ``are_early``, all of them count alike."""
    osl_requests: int = 0
    """Requests that completed, up to as many."""
    completed_osl_tokens: float = 0.0
    """Mean output of the requests that completed."""
    are_early: bool = False
    """True while those that complete are the short ones; never in an aggregated pool. There, prompts that count alike
    beside outputs that seem short cost more: the reasoning trace 1.60 instead of 1.47 times the fixed fleet."""

    def inherited(self) -> "Lengths":
        """Return a copy for a successor, which continues with the output that was inferred while first requests ran.

        Evidence of an earlier version lacks the mean of the completed requests: without it, the next sample would
        replace what the predecessor knew.
        """
        return replace(
            self,
            osl_requests=self.osl_requests or (_RECENT_REQUESTS if self.osl_tokens else 0),
            completed_osl_tokens=self.osl_tokens,
            are_early=False,
        )

    def add(self, interval: TrafficTotals, osl_tokens_min: float = 0.0) -> None:
        """Add the requests of a sample of about a second, whose mean output is ``osl_tokens_min`` at least."""
        isl, osl = interval.isl_tokens, interval.osl_tokens
        self.isl_requests = min(_RECENT_REQUESTS, self.isl_requests + isl.count)
        self.osl_requests = min(_RECENT_REQUESTS, self.osl_requests + osl.count)
        isl_requests = max(1, self.isl_requests) if self.are_early else _RECENT_REQUESTS
        self.isl_tokens = _moved(self.isl_tokens, isl, isl.count / isl_requests + 0.01)
        self.completed_osl_tokens = _moved(self.completed_osl_tokens, osl, osl.count / _RECENT_REQUESTS + 0.01)
        self.osl_tokens = max(self.completed_osl_tokens, osl_tokens_min)
        self.samples = min(_LASTING_SAMPLES, self.samples + (isl.count > 0))
        weight = 1.0 / max(1, self.samples)
        self.lasting_isl_tokens = _moved(self.lasting_isl_tokens, isl, weight)
        self.lasting_osl_tokens = _moved(self.lasting_osl_tokens, osl, weight)

    def work(self, role: Role) -> float:
        """Return the work of a recent request for a role, in prompt tokens, or in output tokens for decode."""
        return request_work(role, self.isl_tokens, self.osl_tokens)

    def expected_work(self, role: Role) -> float:
        """Return the work of a request to provide for, since requests that are short for some seconds do not last."""
        isl, osl = max(self.isl_tokens, self.lasting_isl_tokens), max(self.osl_tokens, self.lasting_osl_tokens)
        return request_work(role, isl, osl)


def request_work(role: Role, isl_tokens: float, osl_tokens: float) -> float:
    """Return the work of a request for a role, in prompt tokens, or in output tokens for decode."""
    if role == "prefill":
        return isl_tokens
    return osl_tokens if role == "decode" else isl_tokens + OUTPUT_WEIGHT * osl_tokens


def _moved(mean: float, new: RunningMean, weight: float) -> float:
    """Return an exponential mean."""
    if new.value is None:
        return mean
    return mean + (new.value - mean) * min(1.0, weight) if mean else new.value
