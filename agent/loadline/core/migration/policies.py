"""Migration policies. Each combines filters of sources and destinations, a selector of pairs, and a sizer."""

from collections.abc import Callable, Mapping
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
    Threshold,
    all_of,
    at_least,
    below,
    draining,
    failed,
    healthy,
    unreserved,
)
from loadline.core.migration.knobs import DRAIN, MetricName, MigrationKnobs, PolicyName
from loadline.core.migration.selectors import Selector, balance, consolidate, pack, spread
from loadline.core.vocabulary.scalars import Role

_BUSY_BATCH: Final = 0.1
"""Decode batch from which a worker counts as busy."""


class Policy(Struct, frozen=True):
    """Migration policy for one group of workers."""

    name: str
    sources: Filter
    destinations: Filter
    select: Selector
    size: Sizer
    urgent: bool = False
    """True if every report causes an evaluation of all sources, so that a freed slot is used at once."""
    patient: bool = False
    """True if it is evaluated in full rounds only, and waits for ``consolidate_after_ms`` before it migrates."""
    metric: MetricName | None = None
    """Load metric; workers without it are neither sources nor destinations. None: the policy needs no metric."""


def build_policy(name: PolicyName | str, knobs: MigrationKnobs, role: Role) -> Policy | None:
    """Build a policy for the workers of a role; return None if it does not apply to the role."""
    if name == DRAIN:
        size = size_for_evacuation if role == "prefill" else size_for_drain
        return Policy(DRAIN, draining, healthy, spread(_METRICS[role](knobs)), size, urgent=True)
    if name in _LOADS:
        return _load_policy(name, knobs) if _LOADS[name] == role else None
    if name in _FAILOVERS:
        if _FAILOVERS[name] != role:
            return None
        return Policy(name, failed, healthy, spread(_METRICS[role](knobs)), size_for_evacuation, urgent=True)
    return None if role == "prefill" else _PACKING[name]


def _load_policy(name: str, knobs: MigrationKnobs) -> Policy:
    role = _LOADS[name]
    threshold, metric = _THRESHOLDS[role](knobs), _METRICS[role](knobs)
    any_load = threshold <= 0.0
    return Policy(
        name,
        healthy if any_load else all_of(healthy, at_least(metric, lambda _view: threshold)),
        healthy if any_load else all_of(healthy, below(metric, lambda _view: threshold)),
        balance(metric, by_unit=knobs.load_balance_scope == "unit"),
        size_for_balance(metric, 0.0 if any_load else threshold),
        metric=metric,
    )


def _of_tpot_slo(knob: str) -> Threshold:
    """Return the threshold that a knob defines as a fraction of the objective for the time per output token."""
    return lambda view: float(getattr(view.knobs, knob)) * view.tpot_slo_ms


_BUSY: Final = at_least("decode_batch_size", lambda _view: _BUSY_BATCH)
_UNDER_DISPATCH: Final = below("predicted_tpot", _of_tpot_slo("tpot_slo_dispatch_threshold"))

_LOADS: Final[Mapping[str, Role]] = {"decode_load": "decode", "neutral_load": "aggregated"}
_FAILOVERS: Final[Mapping[str, Role]] = {
    "prefill_failover": "prefill",
    "decode_failover": "decode",
    "neutral_failover": "aggregated",
}
_METRICS: Final[Mapping[Role, Callable[[MigrationKnobs], MetricName]]] = {
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
        all_of(
            healthy,
            unreserved("prefill"),
            at_least("predicted_tpot", _of_tpot_slo("tpot_migrate_out_ceil_threshold")),
        ),
        all_of(healthy, unreserved("prefill"), _UNDER_DISPATCH),
        pack,
        size_for_mitigation,
        metric="predicted_tpot",
    ),
    "binpacking_consolidation": Policy(
        "binpacking_consolidation",
        all_of(
            healthy,
            unreserved("prefill"),
            unreserved("decode"),
            below("predicted_tpot", _of_tpot_slo("tpot_migrate_out_floor_threshold")),
            _BUSY,
        ),
        all_of(healthy, unreserved("prefill"), _UNDER_DISPATCH, _BUSY),
        consolidate,
        size_for_consolidation,
        patient=True,
        metric="predicted_tpot",
    ),
}
