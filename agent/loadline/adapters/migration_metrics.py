"""Prometheus metrics of migrations. Labels are models and closed lists of words, never workers.

Only the leader counts outcomes. A standby follows the same migrations and exports how many are in flight.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from loadline.core.vocabulary.status import DurationTotal, MigrationStatus, ModelStatus

_MODEL: Final = ("model",)
_MS_PER_S: Final = 1_000


def migration_metrics(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    """Yield the metrics of models with migration enabled, and the drain times of all models."""
    enabled = {model.model: model.migrations for model in models if model.migrations is not None}
    yield _outcomes(enabled)
    yield _by_policy("requests", "Migrated requests.", {name: status.requests for name, status in enabled.items()})
    yield _by_policy("tokens", "Migrated KV cache tokens.", {name: status.tokens for name, status in enabled.items()})
    yield _seconds(
        "migration_phase",
        "Time that migrations spent in phases that they have left.",
        (*_MODEL, "phase"),
        [((name, phase), total) for name, status in enabled.items() for phase, total in status.phases.items()],
    )
    drained = [((model.model,), model.emptied) for model in models]
    yield _seconds("drain", "Time that workers took to drain.", _MODEL, drained)
    in_flight = {name: status.in_flight for name, status in enabled.items()}
    yield _gauge("migrations_in_flight", "Migrations in flight.", in_flight)
    silent = {name: status.silent for name, status in enabled.items()}
    text = "Workers that did not answer a migrate command and get none until their circuit breaker closes."
    yield _gauge("migration_workers_silent", text, silent)


def _outcomes(models: Mapping[str, MigrationStatus]) -> Metric:
    labels = (*_MODEL, "policy", "outcome", "reason")
    family = CounterMetricFamily("loadline_migrations", "Migrate commands by outcome.", labels=labels)
    for name, status in models.items():
        for key, count in status.commands.items():
            policy, outcome, *reason = key.split(":")
            family.add_metric((name, policy, outcome, *(reason or [""])), count)
    return family


def _by_policy(what: str, text: str, values: Mapping[str, Mapping[str, int]]) -> Metric:
    family = CounterMetricFamily(f"loadline_migrated_{what}", text, labels=(*_MODEL, "policy"))
    for name, by_policy in values.items():
        for policy, count in by_policy.items():
            family.add_metric((name, policy), count)
    return family


def _seconds(
    what: str, text: str, labels: Sequence[str], totals: Sequence[tuple[tuple[str, ...], DurationTotal]]
) -> Metric:
    family = SummaryMetricFamily(f"loadline_{what}_seconds", text, labels=labels)
    for values, total in totals:
        family.add_metric(values, total.count, total.total_ms / _MS_PER_S)
    return family


def _gauge(what: str, text: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"loadline_{what}", text, labels=_MODEL)
    for name, value in values.items():
        family.add_metric((name,), value)
    return family
