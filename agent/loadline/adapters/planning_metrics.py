"""Prometheus metrics of what planners expect, have learned and hold back.

Only the leader exports them: a standby plans nothing, and its expectations would look like those of the leader.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadline.core.vocabulary.status import AgentStatus, ForecastStatus, ModelStatus, PoolEstimate

_MODEL: Final = ("model",)
_MS_PER_S: Final = 1_000.0
_FORECASTS: Final[tuple[tuple[str, str, Callable[[ForecastStatus], float | None]], ...]] = (
    (
        "requests_per_second",
        "Arrivals expected when a worker requested now is ready.",
        lambda one: one.requests_per_s,
    ),
    ("lead_seconds", "Time until a worker requested now is ready.", lambda one: one.lead_ms / _MS_PER_S),
    (
        "due_requests_per_second",
        "Arrivals that were forecast for the time that ended last.",
        lambda one: one.due_requests_per_s,
    ),
    (
        "observed_requests_per_second",
        "Arrivals that were observed in that time.",
        lambda one: one.observed_requests_per_s,
    ),
)
_TOTALS: Final[tuple[tuple[str, str, Callable[[ForecastStatus], float]], ...]] = (
    (
        "observed_requests",
        "Requests that were observed in times with a forecast.",
        lambda one: one.observed_requests,
    ),
    (
        "error_requests",
        "Sum of the absolute differences of forecast and observed requests.",
        lambda one: one.error_requests,
    ),
)
_ESTIMATES: Final[tuple[tuple[str, str, Callable[[PoolEstimate], float | None]], ...]] = (
    (
        "worker_capacity_requests_per_second",
        "Requests that a worker serves within the objectives.",
        lambda one: one.serves_per_s,
    ),
    (
        "predicted_ttft_seconds",
        "Mean TTFT of the expected load with the ready workers, by the queueing model.",
        lambda one: None if one.ttft_ms is None else one.ttft_ms / _MS_PER_S,
    ),
    (
        "predicted_itl_seconds",
        "Mean ITL of the expected load with the ready workers, by the queueing model.",
        lambda one: None if one.itl_ms is None else one.itl_ms / _MS_PER_S,
    ),
    (
        "predicted_utilisation_ratio",
        "Expected load divided by what the ready workers serve at all, by the queueing model.",
        lambda one: one.utilisation_ratio,
    ),
)


def planning_metrics(status: AgentStatus) -> Iterator[Metric]:
    """Yield forecasts, estimates and holds of all models, of a leader only."""
    models = status.models if status.leading else ()
    yield from _forecasts(models)
    yield from _estimates(models)
    text = "Observed latencies divided by the profiled ones, by which profiles are corrected."
    corrections = GaugeMetricFamily("loadline_correction_factor", text, labels=(*_MODEL, "role"))
    text = "1 for each reason of the last round without a decision; pool is empty for a reason of the whole model."
    holds = GaugeMetricFamily("loadline_hold", text, labels=(*_MODEL, "pool", "reason"))
    for model in models:
        for role, factor in model.estimates.corrections.items():
            corrections.add_metric((model.model, role), factor)
        for reason in model.hold_reasons:
            pool, _, code = reason.rpartition(":")
            holds.add_metric((model.model, pool, code), 1.0)
    yield from (corrections, holds)


def _forecasts(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    known = [(model.model, model.estimates.forecast) for model in models if model.estimates.forecast is not None]
    for name, text, value_of in _FORECASTS:
        gauge = GaugeMetricFamily(f"loadline_forecast_{name}", text, labels=_MODEL)
        for model, forecast in known:
            value = value_of(forecast)
            if value is not None:
                gauge.add_metric((model,), value)
        yield gauge
    for name, text, total_of in _TOTALS:
        counter = CounterMetricFamily(f"loadline_forecast_{name}", text, labels=_MODEL)
        for model, forecast in known:
            counter.add_metric((model,), total_of(forecast))
        yield counter


def _estimates(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    known = [
        ((model.model, pool.pool, pool.role), model.estimates.pools[pool.pool])
        for model in models
        for pool in model.pools
        if pool.pool in model.estimates.pools
    ]
    for name, text, value_of in _ESTIMATES:
        gauge = GaugeMetricFamily(f"loadline_{name}", text, labels=(*_MODEL, "pool", "role"))
        for labels, estimate in known:
            value = value_of(estimate)
            if value is not None:
                gauge.add_metric(labels, value)
        yield gauge
