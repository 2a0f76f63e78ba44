"""How long KV cache takes from one worker to another, at once or while the request goes on.

A live migration copies everything first while the request goes on decoding, then what was added meanwhile, and so on,
until so little is left that the request can wait for it (Llumnix: at most 3 stages, the last of at most 16 blocks).
"""

from msgspec import Struct

STAGES_MAX = 3
LAST_STAGE_TOKENS = 256  # 16 blocks of 16 tokens


class LiveCopy(Struct, frozen=True):
    """The stages of a live migration. The request goes on in all but the last, in which it stands still."""

    stages_ms: tuple[float, ...]

    @property
    def copying_ms(self) -> float:
        """How long the request goes on where it is."""
        return sum(self.stages_ms[:-1])

    @property
    def downtime_ms(self) -> float:
        """How long it stands still."""
        return self.stages_ms[-1]


class TransferLink(Struct, frozen=True):
    """The way between two workers."""

    bandwidth_gbytes_per_s: float
    latency_ms: float
    kv_bytes_per_token: int

    def transfer_ms(self, tokens: float) -> float:
        """Time until the KV cache of so many tokens is there."""
        return self.latency_ms + tokens * self.kv_bytes_per_token / (self.bandwidth_gbytes_per_s * 1e6)

    def live_copy(self, tokens: float, tokens_per_ms: float) -> LiveCopy:
        """Copy so many tokens while ``tokens_per_ms`` are added.

        A link slower than the request never catches up; the request is stopped for the third stage all the same.
        """
        stages_ms: list[float] = []
        left = tokens
        while left > LAST_STAGE_TOKENS and len(stages_ms) < STAGES_MAX - 1:
            stages_ms.append(self.transfer_ms(left))
            left = stages_ms[-1] * tokens_per_ms
        return LiveCopy((*stages_ms, self.transfer_ms(left)))
