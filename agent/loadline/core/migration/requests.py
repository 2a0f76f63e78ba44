"""Selection of the requests of a migration by its source, for real and simulated workers.

Rules and orders are those of Llumnix, with three differences. The selected requests do not exceed the amount of the
command; in Llumnix, the last one may. If every request is longer than the amount, the first in order is selected; in
Llumnix, none is. Requests with the fewest migrations come first; otherwise, a request that has just arrived would be
the first to migrate again.
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
    """False if it cannot migrate, such as one with guided decoding."""
    hops: int = 0
    """Migrations so far."""
    remaining_tokens: int | None = None
    """Remaining output tokens; None if unknown."""

    @property
    def tokens(self) -> int:
        """Prompt and output tokens, whose KV cache a migration copies."""
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
    """Return the requests that a migration includes, in the order in which they migrate.

    Args:
        candidates: Requests in queue order: running ones by arrival, then waiting ones. It breaks ties.
        rule: Unit of ``value``.
        order: Order of preference. ``LCR``, ``FCR``, ``LR`` and ``SR`` select running requests with an output token.
        value: Amount. ``ALL_REQUESTS`` with ``NUM_REQ`` selects waiting, then running requests in queue order.
        requests_max: Maximum requests.
        tokens_max: Maximum tokens in total; None: unlimited.
        hops_max: Migrations after which a request stays.
        kv_tokens_total: Capacity of the worker's KV cache in tokens, to which a ``RATIO`` refers; 0: unknown.
    """
    requested = _requested_tokens(rule, value, kv_tokens_total)
    limit = float("inf") if tokens_max is None else float(tokens_max)
    allowed = [one for one in candidates if _may_migrate(one, hops_max) and one.tokens <= limit]
    if rule == "NUM_REQ" and value == ALL_REQUESTS:
        queue = _of_state(allowed, waiting=True) + _of_state(allowed, waiting=False)
    else:
        queue = _ORDERS[order](allowed)
        requests_max = min(requests_max, int(value)) if rule == "NUM_REQ" else requests_max
    # Sorting is stable, so requests with equal hops keep their order.
    queue.sort(key=attrgetter("hops"))
    fitting = _fitting(queue, requests_max, min(requested, limit))
    return fitting or (queue[:1] if requested > 0 and requests_max > 0 else [])


def _requested_tokens(rule: MigrationRule, value: float, kv_tokens_total: int) -> float:
    if rule == "NUM_REQ":
        return float("inf")
    return value if rule == "TOKEN" else value * kv_tokens_total


def _may_migrate(one: MigratableRequest, hops_max: int) -> bool:
    """Return True if a request may migrate; one with a single remaining token completes before it could."""
    ending = one.remaining_tokens is not None and one.remaining_tokens <= 1
    return one.movable and one.hops < hops_max and not ending


def _fitting(queue: Sequence[MigratableRequest], requests_max: int, tokens_max: float) -> list[MigratableRequest]:
    """Return the requests that fit into the limits together, in order, skipping those that do not."""
    selected: list[MigratableRequest] = []
    left = tokens_max
    for one in queue:
        if len(selected) < requests_max and one.tokens <= left:
            selected.append(one)
            left -= one.tokens
    return selected


def _of_state(candidates: Sequence[MigratableRequest], *, waiting: bool) -> list[MigratableRequest]:
    return [one for one in candidates if one.waiting == waiting]


def _decoding(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    """Return running requests with an output token; without one, their KV cache is incomplete."""
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
