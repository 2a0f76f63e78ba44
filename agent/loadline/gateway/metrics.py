"""Prometheus metrics of a gateway."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loadline.client.frontend import FrontendClient
from loadline.gateway.backends import Backends

_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GatewayMetrics:
    """Counters of one gateway, and what its models hold."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "loadline_gateway_requests", "Answered requests.", ("model", "status"), registry=self._registry
        )
        self._retries = Counter(
            "loadline_gateway_retries", "Requests sent again to another worker.", ("model",), registry=self._registry
        )
        self._ttft = Histogram(
            "loadline_gateway_time_to_first_token_seconds",
            "Time from the arrival of a streamed request to its first token.",
            ("model",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._held = self._gauge("held", "Requests that wait for a worker.")
        self._in_flight = self._gauge("in_flight", "Requests that workers process.")
        self._workers = self._gauge("workers", "Workers that take requests.")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"loadline_gateway_{name}", text, ("model",), registry=self._registry)

    def watch(self, model: str, backends: Backends, frontend: FrontendClient) -> None:
        """Expose the requests and workers of a model."""
        self._held.labels(model).set_function(lambda: frontend.queued)
        self._in_flight.labels(model).set_function(lambda: frontend.in_flight)
        self._workers.labels(model).set_function(lambda: len(backends.ready))

    def answered(self, model: str, status: int) -> None:
        """Count an answer; 499 stands for a client that left."""
        self._requests.labels(model, str(status)).inc()

    def retried(self, model: str) -> None:
        """Count a request that is sent again."""
        self._retries.labels(model).inc()

    def first_token(self, model: str, seconds: float) -> None:
        """Record a time to first token."""
        self._ttft.labels(model).observe(seconds)

    def render(self) -> bytes:
        """Return all metrics as Prometheus text."""
        return generate_latest(self._registry)
