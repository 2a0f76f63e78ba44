"""Transfer times of KV cache between workers, at once or while the request continues.

A live migration copies the whole cache while the request continues to decode, then the tokens added meanwhile, and so
on until the rest is short enough to stop the request (Llumnix: at most 3 stages, the last of at most 16 blocks).
"""

from msgspec import Struct

STAGES_MAX = 3
LAST_STAGE_TOKENS = 256  # 16 blocks of 16 tokens


class LiveCopy(Struct, frozen=True):
    """Stages of a live migration. The request continues in all but the last one."""

    stages_ms: tuple[float, ...]

    @property
    def copying_ms(self) -> float:
        """Time during which the request continues at the source."""
        return sum(self.stages_ms[:-1])

    @property
    def downtime_ms(self) -> float:
        """Time during which the request is stopped."""
        return self.stages_ms[-1]


class TransferLink(Struct, frozen=True):
    """Network link between two workers."""

    bandwidth_gbytes_per_s: float
    latency_ms: float
    kv_bytes_per_token: int

    def transfer_ms(self, tokens: float) -> float:
        """Return the time to transfer the KV cache of a number of tokens."""
        return self.latency_ms + tokens * self.kv_bytes_per_token / (self.bandwidth_gbytes_per_s * 1e6)

    def live_copy(self, tokens: float, tokens_per_ms: float) -> LiveCopy:
        """Copy a cache while ``tokens_per_ms`` are added to it.

        A link slower than the request never catches up; the third stage stops the request regardless.
        """
        stages_ms: list[float] = []
        left = tokens
        while left > LAST_STAGE_TOKENS and len(stages_ms) < STAGES_MAX - 1:
            stages_ms.append(self.transfer_ms(left))
            left = stages_ms[-1] * tokens_per_ms
        return LiveCopy((*stages_ms, self.transfer_ms(left)))
