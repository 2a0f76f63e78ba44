"""Which requests of a worker a move takes. Sources choose by it, real ones and simulated ones.

The vocabulary is Llumnix's, what comes out is not always: there the last request taken may be as large as all that was
asked for, and a sequence longer than that never moves. Here a move takes what was asked for at most, and where not one
request is so short, the first in order alone. Who has been moved least goes first, or the newest comer, which is the
one that was just moved in, would be sent on and on.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.migrations import ALL_REQUESTS, MigrationOrder, MigrationRule


class MigratableRequest(Struct, frozen=True):
    """A request that a worker has."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """So far."""
    waiting: bool = False
    movable: bool = True
    """False where it must stay, such as one with guided decoding."""
    hops: int = 0
    """How often it was moved."""
    remaining_tokens: int | None = None
    """How many output tokens it will have yet; None: nobody knows."""

    @property
    def tokens(self) -> int:
        """All it has, and so what has to be copied."""
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
    """The requests that a move takes, in the order in which they go.

    Args:
        candidates: In queue order: those that run, the first come first, then those that wait. Where two are equal the
            first of these goes first.
        rule: What ``value`` counts.
        order: Who goes first. ``LCR``, ``FCR``, ``LR`` and ``SR`` take of those that run and have an output token.
        value: How much; ``ALL_REQUESTS`` with ``NUM_REQ`` takes those that wait, then those that run, in queue order.
        requests_max: Never more than so many.
        tokens_max: Never more tokens than these in all; None: no limit.
        hops_max: None that was moved so often.
        kv_tokens_total: Tokens that the KV cache of the worker has room for, which a ``RATIO`` is of; 0: unknown.
    """
    asked = _asked_tokens(rule, value, kv_tokens_total)
    limit = float("inf") if tokens_max is None else float(tokens_max)
    able = [one for one in candidates if _may_move(one, hops_max) and one.tokens <= limit]
    if rule == "NUM_REQ" and value == ALL_REQUESTS:
        queue = _in_turn(able, waiting=True) + _in_turn(able, waiting=False)
    else:
        queue = _ORDERS[order](able)
        requests_max = min(requests_max, int(value)) if rule == "NUM_REQ" else requests_max
    # Sorting is stable, so those that were moved equally often keep their order.
    queue.sort(key=attrgetter("hops"))
    fitting = _that_fit(queue, requests_max, min(asked, limit))
    return fitting or (queue[:1] if asked > 0 and requests_max > 0 else [])


def _asked_tokens(rule: MigrationRule, value: float, kv_tokens_total: int) -> float:
    if rule == "NUM_REQ":
        return float("inf")
    return value if rule == "TOKEN" else value * kv_tokens_total


def _may_move(one: MigratableRequest, hops_max: int) -> bool:
    """One that has a single token to go is over before it is moved."""
    ending = one.remaining_tokens is not None and one.remaining_tokens <= 1
    return one.movable and one.hops < hops_max and not ending


def _that_fit(queue: Sequence[MigratableRequest], requests_max: int, tokens_max: float) -> list[MigratableRequest]:
    """As many as fit, one after the other; one that does not is passed over."""
    taken: list[MigratableRequest] = []
    left = tokens_max
    for one in queue:
        if len(taken) < requests_max and one.tokens <= left:
            taken.append(one)
            left -= one.tokens
    return taken


def _in_turn(candidates: Sequence[MigratableRequest], *, waiting: bool) -> list[MigratableRequest]:
    return [one for one in candidates if one.waiting == waiting]


def _decoding(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    """Those that run and have an output token: before that, their KV cache is not whole."""
    return [one for one in candidates if not one.waiting and one.output_tokens > 0]


def _last_come(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return _decoding(candidates)[::-1]


def _longest(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return sorted(_decoding(candidates), key=lambda one: -one.tokens)


def _shortest(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return sorted(_decoding(candidates), key=attrgetter("tokens"))


def _waiting(candidates: Sequence[MigratableRequest]) -> list[MigratableRequest]:
    return _in_turn(candidates, waiting=True)


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
