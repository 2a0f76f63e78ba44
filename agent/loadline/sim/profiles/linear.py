"""Times of an engine from four numbers: see ``core.models.linear``."""

from loadline.core.engines.linear import LinearTimes


class LinearProfile(LinearTimes, frozen=True):
    """Parameters in ms, ms a request, ms, and ms a token. The context makes no difference to an iteration.

    Raises:
        ValueError: A parameter is negative or not finite, or an iteration or a prompt would take no time.
    """

    def prefill_ms(self, tokens: float) -> float:
        """Time of a prefill pass, in ms."""
        return self.gamma + self.delta * tokens

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:  # noqa: ARG002 - the context makes no difference
        """Time of one decode iteration, in ms."""
        return self.alpha + self.beta * batch_requests
