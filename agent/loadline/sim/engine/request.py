"""What goes into an engine, and what comes out."""

from typing import Literal

from msgspec import Struct

from loadline.core.migration.requests import MigratableRequest


class Request(Struct, frozen=True, omit_defaults=True):
    """A request, and how far it is.

    ``prefilled``: its KV cache comes with it, so no prefill is needed. ``cached_tokens``: the KV of so many leading
    prompt tokens is in the worker's prefix cache; they take blocks but need not be computed. ``hop``: so many
    owners it had before this one. ``moves``: how often it was moved. ``token_ms``: when it got its newest token; None:
    it has none. ``gap_ms``: the longest that it waited for one after another.
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
        """Tokens of cache that move with it: all but the newest; 0 where it has no cache."""
        return self.isl_tokens + self.generated_tokens - 1 if self.prefilled else 0

    def validate(self) -> None:
        """Say what makes no sense.

        Raises:
            ValueError: The numbers cannot be those of a request that has something left to do.
        """
        if self.isl_tokens < 1 or not 0 <= self.generated_tokens < self.osl_tokens:
            raise ValueError(f"request {self.request_id!r} needs a prompt and tokens to generate")
        if self.prefilled and self.generated_tokens == 0:
            raise ValueError(f"request {self.request_id!r} has its cache already, so it has at least one token")
        if not 0 <= self.cached_tokens <= self.isl_tokens:
            raise ValueError(f"request {self.request_id!r} has {self.cached_tokens} cached tokens: at most its prompt")


EventKind = Literal["first_token", "finished", "preempted", "refused", "detached"]


class EngineEvent(Struct, frozen=True):
    """What happened to a request, at an exact virtual time in ms.

    ``first_token``: its prompt was computed here; this ends its stay in a prefill engine. ``refused``: it could never
    fit into this engine's cache. ``taken``: it has left for another engine.
    """

    kind: EventKind
    request_id: str
    at_ms: float
    token_gap_max_ms: float = 0.0
    """Of one that has finished or was taken: the longest time between two of its tokens."""
    last_token_ms: float | None = None
    """Of one that was taken: when it got its newest token; None: it has none."""


class Sequence(Struct, eq=False):
    """A request inside an engine. While it decodes its cache holds all tokens but the newest.

    The batch counts iterations, not tokens: ``generated`` of a member is as of its joining.
    """

    request: Request
    submitted_ms: float
    generated_tokens: int
    cached: bool
    prefilled_tokens: int = 0  # prompt tokens that prefill has computed since the cache was last empty
    join_number: int = 0  # the batch's: rises with every joining
    joined_at_iteration: int = 0  # the batch's: its iterations before this one joined
    leaving: bool = False
    last_token_ms: float | None = None  # when it got its newest token, as of its joining the batch
    token_gap_max_ms: float = 0.0  # longest time between two tokens, as of its joining the batch

    def __post_init__(self) -> None:
        self.last_token_ms, self.token_gap_max_ms = self.request.last_token_ms, self.request.token_gap_max_ms

    def migratable(self, generated: int, *, waiting: bool = False, movable: bool = True) -> MigratableRequest:
        """As those that move requests see it, with so many tokens."""
        request = self.request
        return MigratableRequest(
            request.request_id, request.isl_tokens, generated, waiting, movable, request.migrations
        )

    @property
    def tokens(self) -> int:
        """All tokens there are, prompt and generated."""
        return self.request.isl_tokens + self.generated_tokens

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache: all but the newest, or what prefill will have written."""
        return self.tokens - 1 if self.cached else self.tokens

    @property
    def prefill_tokens(self) -> int:
        """Tokens that prefill has still to compute: at least one, for the next token comes from the last one."""
        return max(self.tokens - self.request.cached_tokens, 1) - self.prefilled_tokens

    @property
    def is_first(self) -> bool:
        """Whether the newest token is the first one that this engine has made of a prompt."""
        return not self.request.prefilled and self.generated_tokens == self.request.generated_tokens + 1
