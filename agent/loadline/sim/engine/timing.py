"""Interface of engine profiles."""

from typing import Protocol


class EngineTiming(Protocol):
    """Pass and iteration times, all finite. ``prefill_ms`` never falls with its argument, and is positive from 1 on."""

    def prefill_ms(self, tokens: float) -> float:
        """Return the time of a pass over one prompt, in ms; the fixed cost of a pass for 0 tokens."""
        ...

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:
        """Return the time of a decode iteration, in ms, above 0, by the total KV tokens of the batch."""
        ...
