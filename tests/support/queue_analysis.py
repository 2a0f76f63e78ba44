"""Measures of a queueing model that follow from its steady state: throughput, latencies and numbers of requests."""

from msgspec import Struct

from loadline.core.engines.queueing import EngineQueue


class QueueAnalysis(Struct, frozen=True):
    """Steady state of an engine at a rate of arrivals; means over the accepted requests."""

    throughput_requests_per_s: float
    refused: float
    waiting_ms: float
    service_ms: float
    prefill_ms: float
    itl_ms: float
    batch_requests: float
    running_requests: float
    waiting_requests: float
    utilisation: float
    """Running requests divided by the largest batch."""

    @property
    def ttft_ms(self) -> float:
        """Mean time to first token."""
        return self.waiting_ms + self.prefill_ms


def analyse(queue: EngineQueue, requests_per_s: float) -> QueueAnalysis:
    """Return the measures at a rate; numbers of requests follow from Little's law."""
    state = queue.steady_state(requests_per_s)
    batch, throughput = state.batch_requests, requests_per_s * (1.0 - state.refused)
    service_ms = queue.fixed_ms + queue.each_ms * batch
    running = throughput * service_ms / 1_000.0
    return QueueAnalysis(
        throughput_requests_per_s=throughput,
        refused=state.refused,
        waiting_ms=state.waiting_ms,
        service_ms=service_ms,
        prefill_ms=queue.prefill_fixed_ms + queue.prefill_each_ms * batch,
        itl_ms=queue.times.alpha + queue.times.beta * batch,
        batch_requests=batch,
        running_requests=running,
        waiting_requests=throughput * state.waiting_ms / 1_000.0,
        utilisation=running / queue.batch_max,
    )
