"""Moves of requests between workers as metrics. Labels are models and closed lists of words, never workers.

The agent that leads counts; one that stands by has followed the same moves, and only says how many are in flight.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from loadline.core.vocabulary.status import DurationTotal, MigrationStatus, ModelStatus

_MODEL: Final = ("model",)
_MS: Final = 1_000
"""In a second."""


def migration_metrics(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    """Moves of the models whose requests may move, and how long workers of all models took to drain."""
    moving = [(model.model, model.migrations) for model in models if model.migrations is not None]
    yield _commands(moving)
    yield _by_policy("requests", "Requests that were moved.", {name: moves.requests for name, moves in moving})
    yield _by_policy("tokens", "Tokens of KV cache that were moved.", {name: moves.tokens for name, moves in moving})
    yield _seconds(
        "move_phase",
        "Time that moves spent in the phases that they left.",
        (*_MODEL, "phase"),
        [((name, phase), timing) for name, moves in moving for phase, timing in moves.phases.items()],
    )
    yield _seconds(
        "drain",
        "Time that workers took to empty themselves.",
        _MODEL,
        [((model.model,), model.emptied) for model in models],
    )
    yield _gauge("moves_in_flight", "Moves in flight.", {name: moves.in_flight for name, moves in moving})
    text = "Workers that did not answer a migrate command and are not asked for a while."
    yield _gauge("move_workers_silent", text, {name: moves.silent for name, moves in moving})


def _commands(moving: Sequence[tuple[str, MigrationStatus]]) -> Metric:
    labels = (*_MODEL, "policy", "outcome", "reason")
    family = CounterMetricFamily("loadline_moves", "Moves by what became of them.", labels=labels)
    for name, moves in moving:
        for what, count in moves.commands.items():
            policy, outcome, *reason = what.split(":")
            family.add_metric((name, policy, outcome, *(reason or [""])), count)
    return family


def _by_policy(what: str, text: str, values: Mapping[str, Mapping[str, int]]) -> Metric:
    family = CounterMetricFamily(f"loadline_moved_{what}", text, labels=(*_MODEL, "policy"))
    for name, by_policy in values.items():
        for policy, count in by_policy.items():
            family.add_metric((name, policy), count)
    return family


def _seconds(
    what: str, text: str, labels: Sequence[str], timings: Sequence[tuple[tuple[str, ...], DurationTotal]]
) -> Metric:
    family = SummaryMetricFamily(f"loadline_{what}_seconds", text, labels=labels)
    for values, timing in timings:
        family.add_metric(values, timing.count, timing.total_ms / _MS)
    return family


def _gauge(what: str, text: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"loadline_{what}", text, labels=_MODEL)
    for name, value in values.items():
        family.add_metric((name,), value)
    return family
