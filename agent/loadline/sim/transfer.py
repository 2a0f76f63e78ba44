"""How long KV cache takes from one worker to another, at once or while the request goes on.

A live migration copies everything first while the request goes on decoding, then what was added meanwhile, and so on,
until so little is left that the request can wait for it (Llumnix: at most 3 stages, the last of at most 16 blocks).
"""

from msgspec import Struct

STAGES_MAX = 3
LAST_STAGE_TOKENS = 256  # 16 blocks of 16 tokens


class LiveCopy(Struct, frozen=True):
    """A live migration: the request goes on while the first stages last, and stands still in the last one."""

    copying_ms: float
    downtime_ms: float


class Link(Struct, frozen=True):
    """The way between two workers."""

    bandwidth_gbytes_per_s: float
    latency_ms: float
    kv_bytes_per_token: int

    def transfer_ms(self, tokens: float) -> float:
        """Time until the KV cache of so many tokens is there."""
        return self.latency_ms + tokens * self.kv_bytes_per_token / (self.bandwidth_gbytes_per_s * 1e6)

    def live_copy(self, tokens: float, tokens_per_ms: float) -> LiveCopy:
        """Copy so many tokens while ``tokens_per_ms`` are added."""
        copying_ms, left = 0.0, tokens
        for _ in range(STAGES_MAX - 1):
            if left <= LAST_STAGE_TOKENS:
                break
            stage_ms = self.transfer_ms(left)
            copying_ms += stage_ms
            left = stage_ms * tokens_per_ms
        return LiveCopy(copying_ms, self.transfer_ms(left))
