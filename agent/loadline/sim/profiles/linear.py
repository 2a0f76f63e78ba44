"""Engine times from four parameters; see ``core.engines.linear``."""

from loadline.core.engines.linear import LinearTimes


class LinearProfile(LinearTimes, frozen=True):
    """Linear timing, in ms: decode iterations take alpha + beta * requests, prefill passes gamma + delta * tokens.

    Raises:
        ValueError: A parameter is negative or not finite, or an iteration or a prompt would take no time.
    """

    def prefill_ms(self, tokens: float) -> float:
        """Return the time of a prefill pass, in ms."""
        return self.gamma + self.delta * tokens

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:  # noqa: ARG002 - independent of the context
        """Return the time of one decode iteration, in ms."""
        return self.alpha + self.beta * batch_requests
