"""Time that prefill workers take for a prompt token, apart from the time that prompts wait for each other."""

from math import inf, sqrt
from typing import Final

from msgspec import Struct

_REQUESTS: Final = 1_000
"""Requests that count, about."""
_VARIATION: Final = 2.0
"""Assumed coefficient of variation of the prompts: the mean time of 1,000 is then known to 6 %."""
_KNOWN: Final = 200.0
"""Requests from which on the time is known to 15 %."""
_OUTLIER: Final = 2.0
"""Ratio to the known time above which prompts waited for something else, such as decode workers."""
_STEPS: Final = 20
"""Bisections of a service time: it is exact to a millionth."""


class PromptSpeed(Struct):
    """Sums over recent requests; older ones count less."""

    requests: float = 0.0
    busy_ms: float = 0.0
    tokens: float = 0.0

    @property
    def ms_per_token(self) -> float:
        """Time for a token in ms; 0: unknown."""
        return self.busy_ms / self.tokens if self.tokens else 0.0

    @property
    def error(self) -> float:
        """Relative standard error of the time; infinite: unknown."""
        return _VARIATION / sqrt(self.requests) if self.requests else inf

    def add(self, requests: int, isl_tokens: float, ms_per_token: float, tokens_per_s: float, workers: int) -> None:
        """Add requests.

        Args:
            requests: Their number.
            isl_tokens: Mean length.
            ms_per_token: Mean TTFT for a token, with the wait.
            tokens_per_s: Rate of prompt tokens of a worker.
            workers: Workers of the pool.
        """
        kept, tokens = max(0.0, 1.0 - requests / _REQUESTS), requests * isl_tokens
        token_ms = service_ms(ms_per_token, tokens_per_s, workers)
        if self.requests > _KNOWN:
            token_ms = min(token_ms, _OUTLIER * self.ms_per_token)
        self.requests = self.requests * kept + requests
        self.busy_ms = self.busy_ms * kept + tokens * token_ms
        self.tokens = self.tokens * kept + tokens


def service_ms(response_ms: float, rate_per_s: float, workers: int) -> float:
    """Return the service time in ms of workers that share a queue, by their response time and the rate of each.

    At the utilisation ``u`` of ``n`` workers, the response time is ``1 + u^(sqrt(2(n+1)) - 1) / (n(1 - u))`` service
    times (Sakasegawa, An Approximation Formula Lq = a*rho^b/(1-rho), 1977).
    """
    low, high = 0.0, min(response_ms, 1_000.0 / rate_per_s) if rate_per_s else response_ms
    exponent = sqrt(2.0 * (workers + 1)) - 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        utilisation = rate_per_s * middle / 1_000.0
        waits = utilisation**exponent / (workers * (1.0 - utilisation)) if utilisation < 1.0 else inf
        low, high = (middle, high) if middle * (1.0 + waits) < response_ms else (low, middle)
    return low
