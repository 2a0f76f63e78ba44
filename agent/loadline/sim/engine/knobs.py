"""Role and limits of an engine."""

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role


class EngineKnobs(Struct, frozen=True):
    """An engine's role and limits.

    Raises:
            ValueError: A limit is below 1, or chunked prefill leaves no tokens for prompts with a full batch.
    """

    role: Role
    kv_blocks_total: int
    block_size_tokens: int = 16
    max_batch_requests: int = 128
    max_batched_tokens: int = 8_192
    chunked_prefill: bool = False

    def __post_init__(self) -> None:
        for name in ("kv_blocks_total", "block_size_tokens", "max_batch_requests", "max_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: write at least 1")
        if self.chunked_prefill and self.max_batched_tokens <= self.max_batch_requests:
            raise ValueError(
                f"max_batched_tokens is {self.max_batched_tokens}: with chunked_prefill a full batch of "
                f"{self.max_batch_requests} leaves no token for prompts, write more than max_batch_requests"
            )

    def blocks(self, tokens: int) -> int:
        """Return the KV blocks of a number of tokens of one request."""
        return -(-tokens // self.block_size_tokens)

    def blocks_needed(self, isl_tokens: int, osl_tokens: int) -> int:
        """Return the KV blocks that a request needs at its end; the last token is never written into the cache."""
        return self.blocks(isl_tokens if self.role == "prefill" else isl_tokens + osl_tokens - 1)
