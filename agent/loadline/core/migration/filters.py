"""Who may give requests away, and who may take them in: small conditions on all workers at once, to be put together."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from loadline.core.migration.columns import Mask
from loadline.core.migration.knobs import MetricName, MigrationKnobs
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.worker_table import RESERVED_CODES

Filter = Callable[[LoadView], Mask]
"""Who passes."""
Metric = Callable[[MigrationKnobs], MetricName]
Threshold = Callable[[LoadView], float]


def all_of(*filters: Filter) -> Filter:
    """Who passes all of them."""
    return lambda view: reduce(np.logical_and, (one(view) for one in filters))


def healthy(view: LoadView) -> Mask:
    """Serves, and fails neither by itself nor with its node or unit."""
    return view.sound


def failed(view: LoadView) -> Mask:
    """Ready, and failing, by itself or with its node or unit."""
    found: Mask = view.failing & view.columns.alive
    return found


def draining(view: LoadView) -> Mask:
    """On its way out and not empty."""
    return view.columns.draining


def below(metric: Metric, threshold: Threshold) -> Filter:
    """Has less of a metric. Who has none is not below."""
    return lambda view: view.metric(metric(view.knobs)) < threshold(view)


def at_least(metric: Metric, threshold: Threshold) -> Filter:
    """Has as much of a metric, or more. Who has none has not."""
    return lambda view: view.metric(metric(view.knobs)) >= threshold(view)


def unreserved(*roles: str) -> Filter:
    """Not kept for any of these roles."""
    codes = [RESERVED_CODES[role] for role in roles]
    return lambda view: reduce(
        np.logical_and, (view.columns.reserved != code for code in codes), np.ones_like(view.columns.alive)
    )
