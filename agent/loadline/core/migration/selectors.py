"""Selectors of pairs of workers, in the order of their evaluation.

A selector yields a source, a destination, and the result of the sizer for them. The caller reserves an amount in the
view (``LoadView.reserve``) before it requests the next pair.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from typing import Final

import numpy as np

from loadline.core.engines.arrays import FloatArray, Mask, Rows
from loadline.core.migration.amounts import Sizer
from loadline.core.migration.knobs import MetricName
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.measures import KV_NEEDED, KV_TOTAL
from loadline.core.migration.outcomes import MigrationAmount, NotPlanned
from loadline.core.migration.worker_table import RESERVED_CODES

SizedPair = tuple[int, int, MigrationAmount | NotPlanned]
"""Source, destination, and the amount to migrate or the reason for none."""
Selector = Callable[[LoadView, Mask, Mask, Sizer], Iterator[SizedPair]]
"""Function that yields pairs of sources (first mask) and destinations (second mask)."""

TRIES: Final = 8
"""Maximum destinations that are tried per source, most suitable first."""


def balance(metric: MetricName, *, by_unit: bool = False) -> Selector:
    """Return a selector that pairs the most loaded source with the least loaded destination, and so on.

    A destination must have a lower load than its source.
    """

    def select(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
        for from_rows, to_rows in _by_unit(view, sources, destinations) if by_unit else ((sources, destinations),):
            ordered = _most_loaded_first(view, from_rows, to_rows, metric, destinations_descending=False)
            yield from _one_to_one(view, *ordered, size, decreasing=view.metric(metric))

    return select


def _by_unit(view: LoadView, sources: Mask, destinations: Mask) -> Iterator[tuple[Mask, Mask]]:
    """Yield sources and destinations of each unit, without workers that have no unit."""
    unit, ranks = view.columns.unit, view.table.ranks
    rows = np.flatnonzero((sources | destinations) & (unit >= 0))
    # Ordered by the first member's name, since codes of units differ between agents.
    for code in dict.fromkeys(unit[rows[np.argsort(ranks[rows])]].tolist()):
        inside = unit == code
        yield sources & inside, destinations & inside


def pack(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
    """Pair the slowest source with the fullest destination that has room."""
    ordered = _most_loaded_first(view, sources, destinations, "predicted_tpot", destinations_descending=True)
    yield from _one_to_one(view, *ordered, size)


def consolidate(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
    """Pair the emptiest source with the fullest destination that has room; those reserved for decode come first."""
    limit = len(view.table)
    from_rows = view.ordered(sources.nonzero()[0], "predicted_tpot", limit, descending=False)
    to_rows = view.ordered(destinations.nonzero()[0], "predicted_tpot", limit, descending=True)
    reserved = view.columns.reserved[to_rows] == RESERVED_CODES["decode"]
    yield from _one_to_one(view, from_rows, np.concatenate((to_rows[reserved], to_rows[~reserved])), size)


def spread(metric: MetricName) -> Selector:
    """Return a selector that spreads the requests of all sources over the least loaded destinations."""

    def select(view: LoadView, sources: Mask, destinations: Mask, size: Sizer) -> Iterator[SizedPair]:
        from_rows = (sources & (view.free_out >= 1.0) & view.with_movable).nonzero()[0]
        if not len(from_rows):
            return
        from_rows = from_rows[np.lexsort((view.table.ranks[from_rows], -view.movable[from_rows]))]
        places = _places(view, min(view.tokens_per_request(row) for row in from_rows.tolist()))
        to_rows = _least_loaded(view, destinations & (places >= 1.0), metric, int(_remaining(view, from_rows)))
        # Destinations with the fewest places come first; the later ones share the rest.
        to_rows = to_rows[np.argsort(places[to_rows], kind="stable")]
        try:
            yield from _shares(view, from_rows, to_rows, size)
        finally:
            view.pair_requests_max = np.inf  # no bound for other policies

    return select


def _shares(view: LoadView, from_rows: Rows, to_rows: Rows, size: Sizer) -> Iterator[SizedPair]:
    """Yield pairs in rounds, in each of which every destination is paired with another source."""
    idle_rounds, remaining = 0, _remaining(view, from_rows)
    for round_number in range(len(from_rows)):
        # Hundreds of workers may fail at once, so those that can neither send nor receive are dropped.
        senders = [row for row in from_rows.tolist() if view.can_send(row)]
        to_rows = to_rows[view.free_in[to_rows] >= 1.0]
        if not (senders and len(to_rows)) or idle_rounds == TRIES:
            return
        idle_rounds += 1
        for place, destination in enumerate(to_rows.tolist()):
            source = senders[(place + round_number) % len(senders)]
            if view.can_send(source):
                view.pair_requests_max = ceil(remaining / (len(to_rows) - place))
                found, before = size(view, source, destination), view.sendable(source)
                yield source, destination, found
                remaining += view.sendable(source) - before
                if isinstance(found, MigrationAmount):
                    idle_rounds = 0


def _most_loaded_first(
    view: LoadView, sources: Mask, destinations: Mask, metric: MetricName, *, destinations_descending: bool
) -> tuple[Rows, Rows]:
    """Return sources, the most loaded first, and destinations; no more of either than can be paired."""
    from_rows, to_rows = sources.nonzero()[0], destinations.nonzero()[0]
    ordered = view.ordered(from_rows, metric, len(to_rows) + TRIES, descending=True)
    return ordered, view.ordered(to_rows, metric, len(from_rows) + TRIES, descending=destinations_descending)


def _least_loaded(view: LoadView, rows: Mask, metric: MetricName, limit: int) -> Rows:
    """Return the least loaded workers, followed by those without the metric, which are better than a failed worker."""
    known = view.ordered(rows.nonzero()[0], metric, limit, descending=False)
    others = (rows & np.isnan(view.metric(metric))).nonzero()[0]
    if not len(others):
        return known
    return np.concatenate((known, view.ordered(others, "num_requests", limit - len(known), descending=False)))


def _places(view: LoadView, tokens_per_request: float) -> FloatArray:
    """Return the requests of ``tokens_per_request`` that each worker can receive; its free slots if room is unknown."""
    space = view.measure(KV_TOTAL) - view.measure(KV_NEEDED) - view.tokens_in_flight
    found: FloatArray = np.fmin(view.free_in, np.floor(space / tokens_per_request))
    return found


def _remaining(view: LoadView, rows: Rows) -> float:
    """Return the number of requests that these workers can still send."""
    return float(np.minimum(view.movable[rows], view.free_out[rows]).sum())


def _one_to_one(
    view: LoadView, from_rows: Rows, to_rows: Rows, size: Sizer, *, decreasing: FloatArray | None = None
) -> Iterator[SizedPair]:
    """Pair each worker at most once. A source gets the first suitable destination of at most ``TRIES``.

    With a load in ``decreasing``, the load of a destination must be below that of its source.
    """
    candidates, first = to_rows.tolist(), 0
    sending: set[int] = set()
    receiving: set[int] = set()
    for source in from_rows.tolist():
        if source in receiving or not view.can_send(source):
            continue
        tries = 0
        while first < len(candidates) and candidates[first] in receiving:
            first += 1
        for destination in islice(candidates, first, None):
            paired = destination in receiving or destination in sending
            if destination == source or paired or not view.can_receive(destination):
                continue
            if tries == TRIES or (
                decreasing is not None and not decreasing.item(destination) < decreasing.item(source)
            ):
                break
            tries += 1
            found = size(view, source, destination)
            yield source, destination, found
            if isinstance(found, MigrationAmount):
                sending.add(source)
                receiving.add(destination)
                break
