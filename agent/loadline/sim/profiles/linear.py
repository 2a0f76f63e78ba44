"""Times from four numbers, as the workload variant autoscaler of llm-d and its queueing model have them.

A decode iteration takes ``alpha + beta * batch`` ms, a prefill pass ``gamma + delta * tokens`` ms. There it is
``gamma + delta * tokens * batch`` of equal prompts; here ``tokens`` is the pass's total, which is the same.
"""

import math

from msgspec import Struct


class LinearProfile(Struct, frozen=True):
    """Parameters in ms, ms a request, ms, and ms a token. The context makes no difference to an iteration.

    Raises:
        ValueError: A parameter is negative or not finite, or an iteration or a prompt would take no time.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "delta"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: write a finite number of ms, at least 0")
        if self.alpha + self.beta == 0.0 or self.gamma + self.delta == 0.0:
            raise ValueError("work takes no time: write alpha or beta above 0, and gamma or delta")

    def prefill_ms(self, tokens: float) -> float:
        """Time of a prefill pass, in ms."""
        return self.gamma + self.delta * tokens

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:  # noqa: ARG002 - the context makes no difference
        """Time of one decode iteration, in ms."""
        return self.alpha + self.beta * batch_requests
