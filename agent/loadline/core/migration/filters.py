"""Filters of workers that may send or receive requests: small conditions over all workers, to be combined."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from loadline.core.engines.arrays import Mask
from loadline.core.migration.knobs import MetricName, MigrationKnobs
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.worker_table import RESERVED_CODES

Filter = Callable[[LoadView], Mask]
"""Workers that pass."""
Metric = Callable[[MigrationKnobs], MetricName]
Threshold = Callable[[LoadView], float]


def all_of(*filters: Filter) -> Filter:
    """Pass workers that pass all filters."""
    return lambda view: reduce(np.logical_and, [one(view) for one in filters])


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


def below(metric: Metric, threshold: Threshold) -> Filter:
    """Pass workers with less than ``threshold`` of a metric; workers without the metric do not pass."""
    return lambda view: view.metric(metric(view.knobs)) < threshold(view)


def at_least(metric: Metric, threshold: Threshold) -> Filter:
    """Pass workers with ``threshold`` or more of a metric; workers without the metric do not pass."""
    return lambda view: view.metric(metric(view.knobs)) >= threshold(view)


def unreserved(*roles: str) -> Filter:
    """Pass workers that are reserved for none of these roles."""
    codes = [RESERVED_CODES[role] for role in roles]
    return lambda view: reduce(np.logical_and, [view.columns.reserved != code for code in codes])
