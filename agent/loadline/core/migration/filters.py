"""Filters of workers that may send or receive requests: small conditions over all workers, to be combined."""

from collections.abc import Callable

from loadline.core.engines.arrays import Mask
from loadline.core.migration.knobs import MetricName
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.worker_table import RESERVED_CODES

Filter = Callable[[LoadView], Mask]
"""Workers that pass."""
Threshold = Callable[[LoadView], float]


def all_of(*filters: Filter) -> Filter:
    """Pass workers that pass all filters, which are two or more."""
    first, second, *others = filters

    def passing(view: LoadView) -> Mask:
        found: Mask = first(view) & second(view)
        for one in others:
            found &= one(view)
        return found

    return passing


def healthy(view: LoadView) -> Mask:
    """Pass workers that serve and are not affected by a failure."""
    return view.healthy


def failed(view: LoadView) -> Mask:
    """Pass ready workers that are affected by a failure."""
    found: Mask = view.failed & view.columns.alive
    return found


def draining(view: LoadView) -> Mask:
    """Pass workers that drain and are not empty."""
    return view.columns.draining


def below(metric: MetricName, threshold: Threshold) -> Filter:
    """Pass workers with less than ``threshold`` of a metric; workers without the metric do not pass."""
    return lambda view: view.metric(metric) < threshold(view)


def at_least(metric: MetricName, threshold: Threshold) -> Filter:
    """Pass workers with ``threshold`` or more of a metric; workers without the metric do not pass."""
    return lambda view: view.metric(metric) >= threshold(view)


def unreserved(role: str) -> Filter:
    """Pass workers that are not reserved for a role."""
    code = RESERVED_CODES[role]
    return lambda view: view.columns.reserved != code
