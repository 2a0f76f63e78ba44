"""Prometheus metrics of the traffic that frontends report, and of its latencies against the objectives.

Every agent receives all traffic reports and exports them, so queries take the highest of the agents.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from loadline.core.vocabulary.status import ModelStatus, Total, TrafficCounts

_MODEL: Final = ("model",)
_MS_PER_S: Final = 1_000.0
_MEANS: Final[tuple[tuple[str, str, float, Callable[[TrafficCounts], Total]], ...]] = (
    ("isl_tokens", "Input sequence length of arrivals.", 1.0, lambda counts: counts.isl_tokens),
    ("osl_tokens", "Output sequence length of completed requests.", 1.0, lambda counts: counts.osl_tokens),
    ("ttft_seconds", "Time to first token of completed requests.", _MS_PER_S, lambda counts: counts.ttft_ms),
    ("itl_seconds", "Mean inter-token latency of completed requests.", _MS_PER_S, lambda counts: counts.itl_ms),
)
"""Name, description, divisor and source of the means."""


def traffic_metrics(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    """Yield arrivals, lengths, latencies and attainment of all models."""
    yield from _requests(models)
    for name, text, divisor, total_of in _MEANS:
        family = SummaryMetricFamily(f"loadline_traffic_{name}", text, labels=_MODEL)
        for model in models:
            total = total_of(model.traffic.totals)
            family.add_metric((model.model,), total.count, total.sum / divisor)
        yield family
    yield from _attainment(models)
    yield from _objectives(models)


def _requests(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    frontends = GaugeMetricFamily("loadline_traffic_frontends", "Frontends that report traffic.", labels=_MODEL)
    arrivals = CounterMetricFamily("loadline_traffic_arrivals", "Requests that arrived.", labels=_MODEL)
    completed = CounterMetricFamily("loadline_traffic_completed", "Requests that finished, also failed.", labels=_MODEL)
    text = "Requests at frontends that wait for a worker (queued), or that workers serve (in_flight)."
    requests = GaugeMetricFamily("loadline_traffic_requests", text, labels=(*_MODEL, "state"))
    for model in models:
        name, traffic = model.model, model.traffic
        frontends.add_metric((name,), traffic.frontends)
        arrivals.add_metric((name,), traffic.totals.arrivals)
        completed.add_metric((name,), traffic.totals.completed)
        if traffic.frontends:
            requests.add_metric((name, "queued"), traffic.queued)
            requests.add_metric((name, "in_flight"), traffic.in_flight)
    yield from (frontends, arrivals, completed, requests)


def _attainment(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    labels = (*_MODEL, "objective")
    text = "Completed requests that frontends compared with an objective."
    judged = CounterMetricFamily("loadline_traffic_judged", text, labels=labels)
    met = CounterMetricFamily("loadline_traffic_met", "Completed requests within an objective.", labels=labels)
    for model in models:
        totals = model.traffic.totals
        for objective, total in (
            ("ttft", totals.ttft_attainment),
            ("itl", totals.itl_attainment),
            ("both", totals.both_attainment),
        ):
            judged.add_metric((model.model, objective), total.count)
            met.add_metric((model.model, objective), total.sum)
    yield from (judged, met)


def _objectives(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    labels = (*_MODEL, "objective")
    latency = GaugeMetricFamily("loadline_objective_seconds", "Latency objectives that are planned for.", labels=labels)
    text = "Fraction of requests that must be within the objectives, where configured."
    attainment = GaugeMetricFamily("loadline_objective_attainment_ratio", text, labels=_MODEL)
    for model in models:
        for objective in ("ttft", "itl"):
            value_ms = model.objectives.get(f"{objective}_ms")
            if value_ms is not None:
                latency.add_metric((model.model, objective), value_ms / _MS_PER_S)
        if model.objectives.get("attainment"):
            attainment.add_metric((model.model,), model.objectives["attainment"])
    yield from (latency, attainment)
