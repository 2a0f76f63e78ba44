"""Which workers are paired: each selector walks sources and destinations in one order, and says what became of it.

``fits`` says what a pair would move, or why it moves nothing. Whoever takes a pair notes it in the view (``View.take``)
before the next one is asked for.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import numpy as np

from loadline.core.migration.amounts import Sizer
from loadline.core.migration.columns import Mask, Numbers, Rows
from loadline.core.migration.knobs import MetricName
from loadline.core.migration.load_metrics import NEED, TOTAL
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.outcomes import MigrationAmount, NotPlanned
from loadline.core.migration.worker_table import RESERVED_CODES

SizedPair = tuple[int, int, MigrationAmount | NotPlanned]
"""Source, destination, and what they move or why they do not."""
Selector = Callable[[LoadView, Mask, Mask, Sizer], Iterator[SizedPair]]
"""Pairs of those that may give (first mask) and those that may take (second mask)."""

TRIES: Final = 8
"""Destinations that are tried for a source: those that come later suit it less."""


def balance(metric: MetricName, *, by_unit: bool = False) -> Selector:
    """The most loaded gives to the least loaded, the next to the next, as long as there is less load there."""

    def select(view: LoadView, sources: Mask, destinations: Mask, fits: Sizer) -> Iterator[SizedPair]:
        for giving, taking in _units(view, sources, destinations) if by_unit else ((sources, destinations),):
            givers, takers = _both(view, giving, taking, metric, emptiest_takes=True)
            yield from _one_to_one(view, givers, takers, fits, downhill=view.metric(metric))

    return select


def _units(view: LoadView, sources: Mask, destinations: Mask) -> Iterator[tuple[Mask, Mask]]:
    """The same for each unit that has both; who names no unit has no other to balance with."""
    unit, ranks = view.columns.unit, view.table.ranks
    rows = np.flatnonzero((sources | destinations) & (unit >= 0))
    # In the order of their first members' names: numbers of units differ from agent to agent.
    for code in dict.fromkeys(unit[rows[np.argsort(ranks[rows])]].tolist()):
        inside = unit == code
        yield sources & inside, destinations & inside


def pack(view: LoadView, sources: Mask, destinations: Mask, fits: Sizer) -> Iterator[SizedPair]:
    """The slowest gives to the fullest that can take more."""
    givers, takers = _both(view, sources, destinations, "predicted_tpot", emptiest_takes=False)
    yield from _one_to_one(view, givers, takers, fits)


def consolidate(view: LoadView, sources: Mask, destinations: Mask, fits: Sizer) -> Iterator[SizedPair]:
    """The emptiest gives to the fullest that can take more, those first that are kept for decode."""
    many = len(view.table)
    givers = view.ordered(sources, "predicted_tpot", many, descending=False)
    takers = view.ordered(destinations, "predicted_tpot", many, descending=True)
    kept = view.columns.reserved[takers] == RESERVED_CODES["decode"]
    yield from _one_to_one(view, givers, np.concatenate((takers[kept], takers[~kept])), fits)


def spread(metric: MetricName) -> Selector:
    """All sources give to all destinations, the least loaded first, each its part, as far as slots and room go."""

    def select(view: LoadView, sources: Mask, destinations: Mask, fits: Sizer) -> Iterator[SizedPair]:
        givers = np.flatnonzero(sources & (view.free_out >= 1.0) & (view.movable >= 1.0))
        if not len(givers):
            return
        givers = givers[np.lexsort((view.table.ranks[givers], -view.movable[givers]))]
        places = _places(view, min(view.tokens_per_request(giver) for giver in givers.tolist()))
        takers = _takers(view, destinations & (places >= 1.0), metric, int(_left(view, givers)))
        # Who can take the least comes first: what it leaves is shared out over those that come after it.
        takers = takers[np.argsort(places[takers], kind="stable")]
        try:
            yield from _shared_out(view, givers, takers, fits)
        finally:
            view.share = np.inf  # it binds no other policy

    return select


def _shared_out(view: LoadView, givers: Rows, takers: Rows, fits: Sizer) -> Iterator[SizedPair]:
    """Pairs in turns, in each of which every taker is offered another giver."""
    failed_rounds = 0
    for turn in range(len(givers)):
        # Hundreds may fail at once: who has nothing left to give, or to take in, is not looked at again.
        giving = [giver for giver in givers.tolist() if view.can_send(giver)]
        takers = takers[view.free_in[takers] >= 1.0]
        if not (giving and len(takers)) or failed_rounds == TRIES:
            return
        failed_rounds += 1
        for place, taker in enumerate(takers.tolist()):
            giver = giving[(place + turn) % len(giving)]
            if view.can_send(giver):
                view.share = np.ceil(_left(view, givers) / (len(takers) - place))
                verdict = fits(view, giver, taker)
                yield giver, taker, verdict
                if isinstance(verdict, MigrationAmount):
                    failed_rounds = 0


def _both(
    view: LoadView, sources: Mask, destinations: Mask, metric: MetricName, *, emptiest_takes: bool
) -> tuple[Rows, Rows]:
    """Sources, the most loaded first, and destinations; no more of either than can come to a pair."""
    giving, taking = int(np.count_nonzero(sources)), int(np.count_nonzero(destinations))
    givers = view.ordered(sources, metric, min(giving, taking + TRIES), descending=True)
    takers = view.ordered(destinations, metric, min(taking, giving + TRIES), descending=not emptiest_takes)
    return givers, takers


def _takers(view: LoadView, rows: Mask, metric: MetricName, most: int) -> Rows:
    """The least loaded, and after them those of which the metric is not known: what is lost here is lost for good."""
    known = view.ordered(rows, metric, most, descending=False)
    others = rows & np.isnan(view.metric(metric))
    if not others.any():
        return known
    return np.concatenate((known, view.ordered(others, "num_requests", most - len(known), descending=False)))


def _places(view: LoadView, tokens_per_request: float) -> Numbers:
    """Requests of so many tokens that each worker has slots and room for; where its room is not known, slots."""
    space = view.measure(TOTAL) - view.measure(NEED) - view.tokens_moving
    found: Numbers = np.fmin(view.free_in, np.floor(space / tokens_per_request))
    return found


def _left(view: LoadView, givers: Rows) -> float:
    """Requests that these can still give away now."""
    return float(np.minimum(view.movable, view.free_out)[givers].sum())


def _one_to_one(
    view: LoadView, givers: Rows, takers: Rows, fits: Sizer, *, downhill: Numbers | None = None
) -> Iterator[SizedPair]:
    """Each worker is in one pair at most. A source takes the first destination that suits it, of ``TRIES``.

    Where ``downhill`` is a load, a destination has less of it than its source.
    """
    left, first = takers.tolist(), 0
    gave: set[int] = set()
    took: set[int] = set()
    for giver in givers.tolist():
        if giver in took or not view.can_send(giver):
            continue
        tries = 0
        while first < len(left) and left[first] in took:
            first += 1
        for taker in islice(left, first, None):
            if taker == giver or taker in took or taker in gave or not view.can_receive(taker):
                continue
            if tries == TRIES or (downhill is not None and not downhill[taker] < downhill[giver]):
                break
            tries += 1
            verdict = fits(view, giver, taker)
            yield giver, taker, verdict
            if isinstance(verdict, MigrationAmount):
                gave.add(giver)
                took.add(taker)
                break
