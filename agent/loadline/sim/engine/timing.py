"""How long the hardware takes: what an engine asks of a profile."""

from typing import Protocol


class EngineTiming(Protocol):
    """Two times, both finite. ``prefill_ms`` never falls with its argument, and is above 0 from one token on."""

    def prefill_ms(self, tokens: float) -> float:
        """Time of a pass over one prompt, in ms; of 0 tokens: what every pass costs, however little is in it."""
        ...

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:
        """Time of one decode iteration, in ms, above 0: of a batch that holds so many KV cache tokens together."""
        ...
