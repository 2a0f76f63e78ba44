"""Replica counts as metrics for autoscalers that act on them, under our names and those of other autoscalers.

Only the leader exports counts, once it has read registry and decisions. An autoscaler that finds no value keeps the
replicas; a 0 would stop all of them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadline.core.vocabulary.status import AgentStatus, ModelStatus, PoolStatus
from loadline.wire.subjects import encode_token

_COUNTS: Final = (
    ("desired_replicas", "Desired workers, in the pool that starts them."),
    ("current_replicas", "Workers that are ready or start in time, in the pool that started them."),
    ("desired_ratio", "Desired workers divided by current ones; the desired workers if there are none."),
)
_RECOMMENDED: Final = "Workers that the planner recommends, before all limits; desired if it recommends no change."
_UNMET: Final = "Workers that the planner recommends beyond the desired ones: a limit keeps the pool short of them."
_CHANGES: Final = "Committed changes of the desired replicas."
_LABELS: Final = ("model", "pool", "namespace", "accelerator_type")
_VARIANT_LABELS: Final = ("variant_name", "namespace", "accelerator_type")
_UNKNOWN_ACCELERATOR: Final = "unresolved"


def replica_metrics(status: AgentStatus, prefixes: Sequence[str]) -> Iterator[Metric]:
    """Yield counts, recommendations and changes of all pools.

    Args:
        status: Current status of the agent.
        prefixes: Prefixes under which the same is exported with the pool as ``variant_name``, such as ``inferno`` and
            ``wva``.
    """
    pools = [(model, pool) for model in status.models for pool in model.pools]
    yield from _families("loadline", _LABELS, pools)
    yield from _recommended(pools)
    for prefix in dict.fromkeys(prefixes):
        yield from _families(prefix, _VARIANT_LABELS, pools)


def _families(prefix: str, labels: Sequence[str], pools: Sequence[tuple[ModelStatus, PoolStatus]]) -> Iterator[Metric]:
    counts = [GaugeMetricFamily(f"{prefix}_{name}", text, labels=labels) for name, text in _COUNTS]
    changes_labels = [label for label in labels if label != "accelerator_type"] + ["direction", "reason"]
    changes = CounterMetricFamily(f"{prefix}_replica_scaling", _CHANGES, labels=changes_labels)
    for model, pool in pools:
        of = _label_values(model, pool)
        for what, count in pool.changes.items():
            direction, _, reason = what.partition(":")
            values = {**of, "direction": direction, "reason": reason}
            changes.add_metric([values[label] for label in changes_labels], count)
        # Other autoscalers count the workers that they started, wherever they serve.
        current, desired = max(0, pool.ready + pool.starting - pool.moved), model.replicas(pool)
        if desired is None:
            continue
        for family, value in zip(counts, (desired, current, desired / (current or 1)), strict=True):
            family.add_metric([of[label] for label in labels], value)
    yield from (*counts, changes)


def _recommended(pools: Sequence[tuple[ModelStatus, PoolStatus]]) -> Iterator[Metric]:
    """Yield the recommended counts, and what limits take; other autoscalers export none: they have no other name."""
    recommended = GaugeMetricFamily("loadline_recommended_replicas", _RECOMMENDED, labels=_LABELS)
    unmet = GaugeMetricFamily("loadline_unmet_replicas", _UNMET, labels=_LABELS)
    for model, pool in pools:
        desired = model.replicas(pool)
        if desired is not None:
            of = _label_values(model, pool)
            labels = [of[label] for label in _LABELS]
            count = desired if pool.recommended is None else max(0, pool.recommended - pool.moved)
            recommended.add_metric(labels, count)
            unmet.add_metric(labels, max(0, count - desired))
    yield from (recommended, unmet)


def _label_values(model: ModelStatus, pool: PoolStatus) -> dict[str, str]:
    return {
        "model": model.model,
        "pool": pool.pool,
        "namespace": model.namespace,
        "accelerator_type": pool.accelerator_type or _UNKNOWN_ACCELERATOR,
        # The pool follows the last slash, so two pools are never the same variant.
        "variant_name": f"{model.model}/{encode_token(pool.pool)}",
    }
