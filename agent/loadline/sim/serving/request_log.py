"""Log of all requests of a simulation: one array for each measure."""

from array import array
from hashlib import sha256
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadline.sim.result import Attainment, Percentiles

_UNKNOWN: Final = float("nan")

FloatArray = NDArray[np.float64]


class RequestLog:
    """Requests by number, in the order of arrival."""

    def __init__(self) -> None:
        self.finished = 0
        self.refused = 0
        self.retried = 0
        self.preempted = 0
        self.migrated = 0
        self._arrived_ms = array("d")
        self._isl_tokens = array("q")
        self._ttft_ms = array("d")
        self._itl_ms = array("d")
        self._token_gap_ms = array("d")
        self._done = array("b")

    @property
    def requests(self) -> int:
        """Requests that arrived."""
        return len(self._arrived_ms)

    def record_arrival(self, at_ms: float, isl_tokens: int) -> int:
        """Record an arrival and return the number of the request."""
        self._arrived_ms.append(at_ms)
        self._isl_tokens.append(isl_tokens)
        self._ttft_ms.append(_UNKNOWN)
        self._itl_ms.append(_UNKNOWN)
        self._token_gap_ms.append(_UNKNOWN)
        self._done.append(0)
        return len(self._arrived_ms) - 1

    def arrived_ms(self, number: int) -> float:
        """Return the arrival time of a request."""
        return self._arrived_ms[number]

    def record_finish(self, number: int, ttft_ms: float, itl_ms: float | None, gap_ms: float = 0.0) -> None:
        """Record the last token of a request and its longest token gap; a single token has no ITL."""
        if self._done[number]:
            raise AssertionError(f"request {number} ends a second time")
        self.finished += 1
        self._done[number] = 1
        self._ttft_ms[number] = ttft_ms
        self._itl_ms[number] = _UNKNOWN if itl_ms is None else itl_ms
        self._token_gap_ms[number] = _UNKNOWN if itl_ms is None else gap_ms

    def record_refusal(self, number: int) -> None:
        """Record that no worker can ever hold a request."""
        if self._done[number]:
            raise AssertionError(f"request {number} ends a second time")
        self.refused += 1
        self._done[number] = -1

    def attainment(self, ttft_ms: float, itl_ms: float) -> Attainment:
        """Return the fraction of all requests that met the objectives; an unfinished request did not.

        A request that finished without an ITL has a single token and meets the ITL objective.
        """
        if not self.requests:
            return Attainment(1.0, 1.0, 1.0)
        took_ms = np.asarray(self._itl_ms)
        single = np.isnan(took_ms) & (np.asarray(self._done) == 1)
        ttft, itl = np.asarray(self._ttft_ms) <= ttft_ms, single | (took_ms <= itl_ms)
        return Attainment(float(ttft.mean()), float(itl.mean()), float((ttft & itl).mean()))

    def ttft_percentiles(self) -> Percentiles:
        """Return the percentiles of TTFT over finished requests."""
        return _percentiles(np.asarray(self._ttft_ms))

    def itl_percentiles(self) -> Percentiles:
        """Return the percentiles of ITL over finished requests with more than one token."""
        return _percentiles(np.asarray(self._itl_ms))

    def token_gap_percentiles(self) -> Percentiles:
        """Return the percentiles of the longest token gap over finished requests with more than one token."""
        return _percentiles(np.asarray(self._token_gap_ms))

    def series(self, step_ms: float, steps: int) -> "RequestSeries":
        """Return the measures by arrival time, in ``steps`` steps of ``step_ms``."""
        arrived = np.asarray(self._arrived_ms)
        edges = np.searchsorted(arrived, np.arange(steps + 1) * step_ms)
        ttft, itl = np.asarray(self._ttft_ms), np.asarray(self._itl_ms)
        tokens = np.concatenate(([0], np.cumsum(np.asarray(self._isl_tokens))))
        parts = list(pairwise(edges))
        return RequestSeries(
            (np.diff(edges) / (step_ms / 1_000.0)).tolist(),
            (np.diff(tokens[edges]) / (step_ms / 1_000.0)).tolist(),
            [_percentiles(ttft[begin:end]) for begin, end in parts],
            [_percentiles(itl[begin:end]) for begin, end in parts],
        )

    def digest(self) -> str:
        """Return a hash of the times of all requests."""
        found = sha256()
        for numbers in (self._arrived_ms, self._ttft_ms, self._itl_ms, self._done):
            found.update(numbers.tobytes())
        return found.hexdigest()


class RequestSeries:
    """Measures over time, one value for each step."""

    def __init__(
        self,
        arrivals_per_s: list[float],
        prompt_tokens_per_s: list[float],
        ttft_ms: list[Percentiles],
        itl_ms: list[Percentiles],
    ) -> None:
        self.arrivals_per_s = arrivals_per_s
        self.prompt_tokens_per_s = prompt_tokens_per_s
        self.ttft_ms = ttft_ms
        self.itl_ms = itl_ms


def _percentiles(values: FloatArray) -> Percentiles:
    known = values[~np.isnan(values)]
    if not known.size:
        return Percentiles(None, None, None)
    p50, p95, p99 = np.percentile(known, (50, 95, 99)).tolist()
    return Percentiles(p50, p95, p99)
