"""The policies: who gives, who takes, how they are paired, and how much moves. Each is put together of small parts."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from loadline.core.migration.amounts import (
    Sizer,
    size_for_balance,
    size_for_consolidation,
    size_for_drain,
    size_for_evacuation,
    size_for_mitigation,
)
from loadline.core.migration.filters import (
    Filter,
    Metric,
    Threshold,
    all_of,
    at_least,
    below,
    draining,
    failed,
    healthy,
    unreserved,
)
from loadline.core.migration.knobs import MetricName, MigrationKnobs, PolicyName
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.selectors import Selector, balance, consolidate, pack, spread
from loadline.core.vocabulary.scalars import Role

DRAIN: Final = "drain"
"""What empties workers on their way out. It comes before all policies."""
_BUSY: Final = 0.1
"""Requests: a worker with fewer in its batch has none."""


class Policy(Struct, frozen=True):
    """One policy for one group of workers."""

    name: str
    sources: Filter
    destinations: Filter
    select: Selector
    fits: Sizer
    urgent: bool = False
    """All who may give are looked at whenever anybody is heard: a slot that has become free is used at once."""
    patient: bool = False
    """It looks when all workers are due, and once more before it acts."""
    metric: Metric | None = None
    """Where there is one, workers of which it is not known take no part."""


def build_policy(name: PolicyName | str, knobs: MigrationKnobs, role: Role) -> Policy | None:
    """A policy for workers of a role; None: it has nothing to do with them."""
    if name == DRAIN:
        fits = size_for_evacuation if role == "prefill" else size_for_drain
        return Policy(DRAIN, draining, healthy, spread(_metric(role)(knobs)), fits, urgent=True)
    if name in _LOADS:
        return _by_load(name, knobs) if _LOADS[name] == role else None
    if name in _FAILOVERS:
        select = spread(_metric(role)(knobs))
        return (
            Policy(name, failed, healthy, select, size_for_evacuation, urgent=True)
            if _FAILOVERS[name] == role
            else None
        )
    return None if role == "prefill" else _PACKING[name]


def _by_load(name: str, knobs: MigrationKnobs) -> Policy:
    role = _LOADS[name]
    threshold, metric = _THRESHOLDS[role](knobs), _metric(role)
    by_unit = knobs.load_balance_scope == "unit"
    anybody = by_unit or threshold <= 0.0
    sources = healthy if anybody else all_of(healthy, at_least(metric, lambda _view: threshold))
    destinations = healthy if anybody else all_of(healthy, below(metric, lambda _view: threshold))
    name_of = metric(knobs)
    return Policy(
        name,
        sources,
        destinations,
        balance(name_of, by_unit=by_unit),
        size_for_balance(name_of, 0.0 if anybody else threshold),
        metric=metric,
    )


def _metric(role: Role) -> Metric:
    return _METRICS[role]


def _share(knob: str) -> Threshold:
    """A share of the objective for the time per output token."""
    return lambda view: float(getattr(view.knobs, knob)) * view.tpot_slo_ms


def _tpot(_knobs: MigrationKnobs) -> MetricName:
    return "predicted_tpot"


def _batch(_knobs: MigrationKnobs) -> MetricName:
    return "decode_batch_size"


def _least_batch(_view: LoadView) -> float:
    return _BUSY


_UNDER_DISPATCH: Final = below(_tpot, _share("tpot_slo_dispatch_threshold"))

_LOADS: Final[Mapping[str, Role]] = {"decode_load": "decode", "neutral_load": "aggregated"}
_FAILOVERS: Final[Mapping[str, Role]] = {
    "prefill_failover": "prefill",
    "decode_failover": "decode",
    "neutral_failover": "aggregated",
}
_METRICS: Final[Mapping[Role, Metric]] = {
    "prefill": lambda knobs: knobs.prefill_load_metric,
    "decode": lambda knobs: knobs.decode_load_metric,
    "aggregated": lambda knobs: knobs.neutral_load_metric,
}
_THRESHOLDS: Final = {
    "decode": lambda knobs: knobs.decode_load_threshold,
    "aggregated": lambda knobs: knobs.neutral_load_threshold,
}
_PACKING: Final[Mapping[str, Policy]] = {
    "binpacking_mitigation": Policy(
        "binpacking_mitigation",
        all_of(healthy, unreserved("prefill"), at_least(_tpot, _share("tpot_migrate_out_ceil_threshold"))),
        all_of(healthy, unreserved("prefill"), _UNDER_DISPATCH),
        pack,
        size_for_mitigation,
        metric=_tpot,
    ),
    "binpacking_consolidation": Policy(
        "binpacking_consolidation",
        all_of(
            healthy,
            unreserved("prefill", "decode"),
            below(_tpot, _share("tpot_migrate_out_floor_threshold")),
            at_least(_batch, _least_batch),
        ),
        all_of(healthy, unreserved("prefill"), _UNDER_DISPATCH, at_least(_batch, _least_batch)),
        consolidate,
        size_for_consolidation,
        patient=True,
        metric=_tpot,
    ),
}
