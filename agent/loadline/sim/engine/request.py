"""Requests and events of an engine."""

from typing import Literal

from msgspec import Struct

from loadline.core.migration.requests import MigratableRequest


class Request(Struct, frozen=True, omit_defaults=True):
    """A request and its progress.

    ``prefilled``: its KV cache comes with it, so it needs no prefill. ``cached_tokens``: leading prompt tokens in the
    worker's prefix cache; they take blocks and need no computation. ``hop``: number of earlier owners. ``migrations``:
    number of migrations. ``last_token_ms``: time of its newest token; None: no token. ``token_gap_max_ms``: longest
    time between two tokens.
    """

    request_id: str
    isl_tokens: int
    osl_tokens: int
    generated_tokens: int = 0
    prefilled: bool = False
    cached_tokens: int = 0
    hop: int = 0
    migrations: int = 0
    last_token_ms: float | None = None
    token_gap_max_ms: float = 0.0

    @property
    def kv_tokens(self) -> int:
        """KV tokens that migrate with it: all but the newest; 0 without a cache."""
        return self.isl_tokens + self.generated_tokens - 1 if self.prefilled else 0

    def validate(self) -> None:
        """Check the numbers of the request.

        Raises:
            ValueError: The numbers are not those of an unfinished request.
        """
        if self.isl_tokens < 1 or not 0 <= self.generated_tokens < self.osl_tokens:
            raise ValueError(f"request {self.request_id!r} needs a prompt and tokens to generate")
        if self.prefilled and self.generated_tokens == 0:
            raise ValueError(f"request {self.request_id!r} has its cache already, so it has at least one token")
        if not 0 <= self.cached_tokens <= self.isl_tokens:
            raise ValueError(f"request {self.request_id!r} has {self.cached_tokens} cached tokens: at most its prompt")


EventKind = Literal["first_token", "finished", "preempted", "refused", "detached"]


class EngineEvent(Struct, frozen=True):
    """An event of a request at an exact virtual time in ms.

    ``first_token``: its prompt was computed here; a prefill engine releases it. ``refused``: it can never fit into this
    engine's cache. ``detached``: it has left for another engine.
    """

    kind: EventKind
    request_id: str
    at_ms: float
    token_gap_max_ms: float = 0.0
    """Longest time between two tokens of a finished or detached request."""
    last_token_ms: float | None = None
    """Time of the newest token of a detached request; None: no token."""


class Sequence(Struct, eq=False):
    """A request inside an engine. While it decodes, its cache holds all tokens but the newest.

    The batch counts iterations, not tokens: ``generated_tokens`` of a member is as of its joining.
    """

    request: Request
    submitted_ms: float
    generated_tokens: int
    cached: bool
    prefilled_tokens: int = 0  # prompt tokens that prefill has computed since the cache was last empty
    join_number: int = 0  # rises with every join of the batch
    joined_at_iteration: int = 0  # iterations of the batch before it joined
    leaving: bool = False
    last_token_ms: float | None = None  # as of joining the batch
    token_gap_max_ms: float = 0.0  # as of joining the batch

    def __post_init__(self) -> None:
        self.last_token_ms, self.token_gap_max_ms = self.request.last_token_ms, self.request.token_gap_max_ms

    def migratable(self, generated: int, *, waiting: bool = False, movable: bool = True) -> MigratableRequest:
        """Return it as a candidate for migration, with its current number of tokens."""
        request = self.request
        return MigratableRequest(
            request.request_id, request.isl_tokens, generated, waiting, movable, request.migrations
        )

    @property
    def tokens(self) -> int:
        """All tokens, of prompt and output."""
        return self.request.isl_tokens + self.generated_tokens

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache: all but the newest, or those that prefill will write."""
        return self.tokens - 1 if self.cached else self.tokens

    @property
    def prefill_tokens(self) -> int:
        """Tokens left to prefill: at least one, since the next token comes from the last one."""
        request = self.request
        tokens = request.isl_tokens + self.generated_tokens - request.cached_tokens
        return (tokens if tokens > 1 else 1) - self.prefilled_tokens  # noqa: FURB136 - max() takes 3x

    @property
    def is_first(self) -> bool:
        """True if the newest token is the first one that this engine has generated from a prompt."""
        return not self.request.prefilled and self.generated_tokens == self.request.generated_tokens + 1
