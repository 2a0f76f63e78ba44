"""Traces of decisions through OpenTelemetry, as ``ports.DecisionTraces``. The variables ``OTEL_*`` configure all of it.

Spans wait in a bounded queue for a thread that sends them; what does not fit, or is not taken, is lost.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from loadline.adapters.daemon_thread import call_in_daemon
from loadline.adapters.logs import bounded
from loadline.core.vocabulary.history import DecisionRecord
from loadline.wire.trace_context import trace_ids

_log = bounded("agent")
_NS_PER_MS: Final = 1_000_000
_CLOSE_S: Final = 3.0
_FAILED: Final = frozenset({"refused", "expired", "not_committed"})


class OtelTraces:
    """Exporter of one trace a decision.

    Args:
        agent: Name of the agent.
        version: Its version.
    """

    def __init__(self, agent: str, version: str) -> None:
        attributes = {"service.version": version, "service.instance.id": agent}
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        if not named:
            attributes["service.name"] = "loadline"
        self._ids = _DecisionIds()
        self._provider = TracerProvider(
            resource=Resource.create(attributes), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("loadline", version)

    def export(self, record: DecisionRecord) -> None:
        """Queue the spans of a decision that has ended: one for each step, under one for the whole."""
        steps = list(_steps(record))
        end_ms = record.ended_at_ms or steps[-1][2]
        self._ids.decision_id = record.decision.decision_id
        root = self._tracer.start_span(
            "decision", context=None, attributes=_attributes(record), start_time=steps[0][1] * _NS_PER_MS
        )
        if record.outcome in _FAILED:
            root.set_status(Status(StatusCode.ERROR, record.detail or record.outcome))
        context = set_span_in_context(root)
        for name, from_ms, until_ms in steps:
            self._tracer.start_span(name, context=context, start_time=from_ms * _NS_PER_MS).end(until_ms * _NS_PER_MS)
        root.end(end_ms * _NS_PER_MS)

    async def close(self) -> None:
        """Send what is queued, for at most 3 s."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await call_in_daemon(self._provider.shutdown)
        except TimeoutError:
            return  # it retries for longer
        except Exception as error:  # noqa: BLE001 - the agent ends in order whatever the exporter raises
            _log.error("traces_not_sent", detail=str(error), exc_info=error)


class _DecisionIds(RandomIdGenerator):  # type: ignore[misc]  # an extra, which is not followed
    """Ids of spans; trace and root span have those of the decision."""

    def __init__(self) -> None:
        self.decision_id = ""

    def generate_trace_id(self) -> int:
        """Return the id of the decision's trace."""
        return trace_ids(self.decision_id)[0]

    def generate_span_id(self) -> int:
        """Return the id of the root span first, then random ones."""
        decision_id, self.decision_id = self.decision_id, ""
        return trace_ids(decision_id)[1] if decision_id else super().generate_span_id()


def _steps(record: DecisionRecord) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of each step in ms; the last one, which is not complete, ends with the decision."""
    issued_at_ms = record.decision.issued_at_ms
    at_ms = record.reported_at_ms or issued_at_ms
    times = (
        ("plan", issued_at_ms),
        ("commit", record.committed_at_ms),
        ("announce", record.announced_at_ms),
        ("accept", record.accepted_at_ms),
        ("apply", record.ended_at_ms or 0),
    )
    for name, until_ms in times:
        yield name, at_ms, until_ms or record.ended_at_ms or at_ms
        if not until_ms:
            return
        at_ms = until_ms


def _attributes(record: DecisionRecord) -> dict[str, Any]:
    """Return what a decision says, its reasons and its end."""
    decision = record.decision
    counts = {f"loadline.replicas.{target.pool}": target.replicas for target in decision.targets}
    previous = {f"loadline.previous_replicas.{target.pool}": target.previous for target in decision.targets}
    return {
        "loadline.decision_id": decision.decision_id,
        "loadline.model": decision.model,
        "loadline.epoch": decision.epoch,
        "loadline.sequence": decision.sequence,
        "loadline.reasons": list(decision.reasons),
        "loadline.outcome": record.outcome,
        "loadline.reporter": record.reporter,
        "loadline.scaler": record.scaler,
        "loadline.detail": record.detail,
        **counts,
        **previous,
    }
