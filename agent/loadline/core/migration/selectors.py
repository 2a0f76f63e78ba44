"""Selectors: which workers are paired, and in which order.

A selector yields pairs of a source and a destination, each with what its sizer returns. The caller reserves an amount
in the view (``LoadView.reserve``) before it asks for the next pair.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import numpy as np

from loadline.core.engines.arrays import FloatArray
from loadline.core.migration.amounts import Sizer
from loadline.core.migration.columns import Mask, Rows
from loadline.core.migration.knobs import MetricName
from loadline.core.migration.load_metrics import KV_NEEDED, KV_TOTAL
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.outcomes import MigrationAmount, NotPlanned
from loadline.core.migration.worker_table import RESERVED_CODES

SizedPair = tuple[int, int, MigrationAmount | NotPlanned]
"""Source, destination, and the amount between them or why there is none."""
Selector = Callable[[LoadView, Mask, Mask, Sizer], Iterator[SizedPair]]
"""Yields pairs of sources (first mask) and destinations (second mask)."""

TRIES: Final = 8
"""Destinations that are tried for a source: later ones are less suitable."""


def balance(metric: MetricName, *, by_unit: bool = False) -> Selector:
    """Pair the most loaded source with the least loaded destination, and so on, while the load decreases."""

    def select(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
        for giving, taking in _by_unit(view, sources, destinations) if by_unit else ((sources, destinations),):
            givers, takers = _most_loaded_first(view, giving, taking, metric, takers_descending=False)
            yield from _one_to_one(view, givers, takers, size, decreasing=view.metric(metric))

    return select


def _by_unit(view: LoadView, sources: Mask, destinations: Mask) -> Iterator[tuple[Mask, Mask]]:
    """Yield sources and destinations of each unit; workers without a unit have no one to balance with."""
    unit, ranks = view.columns.unit, view.table.ranks
    rows = np.flatnonzero((sources | destinations) & (unit >= 0))
    # In the order of the names of their first members: codes of units differ between agents.
    for code in dict.fromkeys(unit[rows[np.argsort(ranks[rows])]].tolist()):
        inside = unit == code
        yield sources & inside, destinations & inside


def pack(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
    """Pair the slowest source with the fullest destination that has room."""
    givers, takers = _most_loaded_first(view, sources, destinations, "predicted_tpot", takers_descending=True)
    yield from _one_to_one(view, givers, takers, size)


def consolidate(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
    """Pair the emptiest source with the fullest destination that has room, those reserved for decode first."""
    limit = len(view.table)
    givers = view.ordered(sources, "predicted_tpot", limit, descending=False)
    takers = view.ordered(destinations, "predicted_tpot", limit, descending=True)
    reserved = view.columns.reserved[takers] == RESERVED_CODES["decode"]
    yield from _one_to_one(view, givers, np.concatenate((takers[reserved], takers[~reserved])), size)


def spread(metric: MetricName) -> Selector:
    """Pair all sources with all destinations, the least loaded first, so that each receives a share."""

    def select(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
        givers = np.flatnonzero(sources & (view.free_out >= 1.0) & (view.movable >= 1.0))
        if not len(givers):
            return
        givers = givers[np.lexsort((view.table.ranks[givers], -view.movable[givers]))]
        places = _places(view, min(view.tokens_per_request(giver) for giver in givers.tolist()))
        takers = _least_loaded(view, destinations & (places >= 1.0), metric, int(_remaining(view, givers)))
        # Those with the fewest places come first: what they leave is shared out over the later ones.
        takers = takers[np.argsort(places[takers], kind="stable")]
        try:
            yield from _shared_out(view, givers, takers, size)
        finally:
            view.pair_requests_max = np.inf  # no bound for other policies

    return select


def _shared_out(view: LoadView, givers: Rows, takers: Rows, size: Sizer) -> Iterator[SizedPair]:
    """Yield pairs in rounds, in each of which every destination is paired with another source."""
    idle_rounds = 0
    for round_number in range(len(givers)):
        # Hundreds of workers may fail at once, so those that can neither send nor receive are dropped.
        giving = [giver for giver in givers.tolist() if view.can_send(giver)]
        takers = takers[view.free_in[takers] >= 1.0]
        if not (giving and len(takers)) or idle_rounds == TRIES:
            return
        idle_rounds += 1
        for place, taker in enumerate(takers.tolist()):
            giver = giving[(place + round_number) % len(giving)]
            if view.can_send(giver):
                view.pair_requests_max = np.ceil(_remaining(view, givers) / (len(takers) - place))
                found = size(view, giver, taker)
                yield giver, taker, found
                if isinstance(found, MigrationAmount):
                    idle_rounds = 0


def _most_loaded_first(
    view: LoadView, sources: Mask, destinations: Mask, metric: MetricName, *, takers_descending: bool
) -> tuple[Rows, Rows]:
    """Return sources, the most loaded first, and destinations; no more of either than can be paired."""
    giving, taking = int(np.count_nonzero(sources)), int(np.count_nonzero(destinations))
    givers = view.ordered(sources, metric, min(giving, taking + TRIES), descending=True)
    takers = view.ordered(destinations, metric, min(taking, giving + TRIES), descending=takers_descending)
    return givers, takers


def _least_loaded(view: LoadView, rows: Mask, metric: MetricName, limit: int) -> Rows:
    """Return the least loaded workers, then those without the metric: a failed worker's requests need any place."""
    known = view.ordered(rows, metric, limit, descending=False)
    others = rows & np.isnan(view.metric(metric))
    if not others.any():
        return known
    return np.concatenate((known, view.ordered(others, "num_requests", limit - len(known), descending=False)))


def _places(view: LoadView, tokens_per_request: float) -> FloatArray:
    """Return how many requests of so many tokens each worker has slots and room for; slots if its room is unknown."""
    space = view.measure(KV_TOTAL) - view.measure(KV_NEEDED) - view.tokens_in_flight
    found: FloatArray = np.fmin(view.free_in, np.floor(space / tokens_per_request))
    return found


def _remaining(view: LoadView, givers: Rows) -> float:
    """Return how many requests these workers can still send now."""
    return float(np.minimum(view.movable, view.free_out)[givers].sum())


def _one_to_one(
    view: LoadView, givers: Rows, takers: Rows, size: Sizer, *, decreasing: FloatArray | None = None
) -> Iterator[SizedPair]:
    """Pair each worker at most once. A source gets the first suitable destination of ``TRIES``.

    With a load in ``decreasing``, the destination must have less of it than its source.
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
            if tries == TRIES or (decreasing is not None and not decreasing[taker] < decreasing[giver]):
                break
            tries += 1
            found = size(view, giver, taker)
            yield giver, taker, found
            if isinstance(found, MigrationAmount):
                gave.add(giver)
                took.add(taker)
                break
