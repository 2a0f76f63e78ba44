"""Selection of the requests that a migration takes, by the source: used by real and by simulated workers.

Rules and orders are those of Llumnix, with two differences. A migration takes at most what its command asks for, where
Llumnix lets the last request exceed it; and if no single request is that short, it takes the first in order, where
Llumnix takes none. Requests that were migrated least often go first: otherwise the request that has just arrived would
be the first to be sent on.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.migrations import ALL_REQUESTS, MigrationOrder, MigrationRule


class MigratableRequest(Struct, frozen=True):
    """A request of a worker."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """Output tokens so far."""
    waiting: bool = False
    movable: bool = True
    """False if it must stay, such as one with guided decoding."""
    hops: int = 0
    """Migrations so far."""
    remaining_tokens: int | None = None
    """Output tokens to come; None if unknown."""

    @property
    def tokens(self) -> int:
        """All its tokens, which a migration copies."""
        return self.prompt_tokens + self.output_tokens


def select_requests(
    candidates: Sequence[MigratableRequest],
    rule: MigrationRule,
    order: MigrationOrder,
    value: float,
    *,
    requests_max: int,
    tokens_max: int | None,
    hops_max: int,
    kv_tokens_total: int,
) -> list[MigratableRequest]:
    """Return the requests that a migration takes, in the order in which they migrate.

    Args:
        candidates: Requests in queue order: running ones by arrival, then waiting ones. Equals keep this order.
        rule: Unit of ``value``.
        order: Order of preference. ``LCR``, ``FCR``, ``LR`` and ``SR`` take running requests with an output token.
        value: Amount; ``ALL_REQUESTS`` with ``NUM_REQ`` takes waiting, then running requests in queue order.
        requests_max: Most requests.
        tokens_max: Most tokens in total; None: unlimited.
        hops_max: Migrations after which a request stays.
        kv_tokens_total: Capacity of the worker's KV cache in tokens, which a ``RATIO`` is a share of; 0: unknown.
    """
    requested = _requested_tokens(rule, value, kv_tokens_total)
    limit = float("inf") if tokens_max is None else float(tokens_max)
    able = [one for one in candidates if _may_migrate(one, hops_max) and one.tokens <= limit]
    if rule == "NUM_REQ" and value == ALL_REQUESTS:
        queue = _of_state(able, waiting=True) + _of_state(able, waiting=False)
    else:
        queue = _ORDERS[order](able)
        requests_max = min(requests_max, int(value)) if rule == "NUM_REQ" else requests_max
    # Sorting is stable, so requests with equal hops keep their order.
    queue.sort(key=attrgetter("hops"))
    fitting = _that_fit(queue, requests_max, min(requested, limit))
    return fitting or (queue[:1] if requested > 0 and requests_max > 0 else [])


def _requested_tokens(rule: MigrationRule, value: float, kv_tokens_total: int) -> float:
    if rule == "NUM_REQ":
        return float("inf")
    return value if rule == "TOKEN" else value * kv_tokens_total


def _may_migrate(one: MigratableRequest, hops_max: int) -> bool:
    """Return whether a request may migrate; one with a single token to come completes before it could."""
    ending = one.remaining_tokens is not None and one.remaining_tokens <= 1
    return one.movable and one.hops < hops_max and not ending


def _that_fit(queue: Sequence[MigratableRequest], requests_max: int, tokens_max: float) -> list[MigratableRequest]:
    """Return the requests that fit, one after the other, skipping those that do not."""
    taken: list[MigratableRequest] = []
    left = tokens_max
    for one in queue:
        if len(taken) < requests_max and one.tokens <= left:
            taken.append(one)
            left -= one.tokens
    return taken


def _of_state(candidates: Sequence[MigratableRequest], *, waiting: bool) -> list[MigratableRequest]:
    return [one for one in candidates if one.waiting == waiting]


def _decoding(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    """Return running requests with an output token: before it, their KV cache is incomplete."""
    return [one for one in candidates if not one.waiting and one.output_tokens > 0]


def _last_come(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return _decoding(candidates)[::-1]


def _longest(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return sorted(_decoding(candidates), key=lambda one: -one.tokens)


def _shortest(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return sorted(_decoding(candidates), key=attrgetter("tokens"))


def _waiting(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return _of_state(candidates, waiting=True)


def _waiting_then_shortest(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return _waiting(candidates) + _shortest(candidates)


_ORDERS: Final[dict[MigrationOrder, Callable[[Sequence[MigratableRequest]], list[MigratableRequest]]]] = {
    "LCR": _last_come,
    "FCR": _decoding,
    "LR": _longest,
    "SR": _shortest,
    "FCW": _waiting,
    "FCWSR": _waiting_then_shortest,
}
