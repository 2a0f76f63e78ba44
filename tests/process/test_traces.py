"""A trace of each decision by OTLP, with real servers, an agent and a collector."""

import asyncio
import hashlib
import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import nats
import pytest

from loadline.rig.rig import Rig
from loadline.wire.codec import encode
from loadline.wire.messages import DecisionApplied
from loadline.wire.subjects import Subjects
from tests.support.agents import MODEL, config, fleet
from tests.waiting import SCENARIO_S, until

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
pytestmark = pytest.mark.process


class Collector(ThreadingHTTPServer):
    """An OTLP collector; ``status`` is its answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.requests: list[Any] = []

    @property
    def spans(self) -> list[Any]:
        groups = (group for one in self.requests for part in one.resource_spans for group in part.scope_spans)
        return [span for group in groups for span in group.spans]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.server.status == 200 and self.path == "/v1/traces":
            self.server.requests.append(collector.ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def traces() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    values = {one.key: one.value for one in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


async def decide_and_apply(rig: Rig) -> tuple[str, dict[str, str]]:
    """Have a decision made and applied; return its id and the headers of its announcement."""
    async with asyncio.timeout(SCENARIO_S), fleet(rig) as agents:
        subjects = Subjects("loadline")
        client = await nats.connect(rig.nats.url)
        announced = await client.subscribe(subjects.decision(MODEL))
        await client.flush()
        await agents.add("decode", "d1", "d2")
        await agents.add("prefill", "p1")
        agents.load(kv=0.97)
        await until(lambda: bool(agents.observer.announced))
        decision = agents.observer.announced[-1]
        message = await announced.next_msg(5)
        for status in ("accepted", "done"):
            answer = DecisionApplied(
                decision.decision_id, MODEL, decision.epoch, decision.sequence, "hand", status, detail="as asked"
            )
            await agents.bus.publish(subjects.applied(MODEL), encode(answer))
            await asyncio.sleep(0)

        def applied() -> bool:
            leader = agents.observer.leader()
            known = leader.models[0].decision if leader else None
            return known is not None and known.state == "applied"

        await until(applied)
        await client.close()
        return decision.decision_id, dict(message.headers or {})


def start(rig: Rig, traces: Collector) -> Any:
    variables = ("OTEL_BSP_SCHEDULE_DELAY=100", f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{traces.server_port}")
    agent = rig.agent(config(rig, "a") + "\n[otel]\ntraces = true\n", "a", runner=("env", *variables))
    agent.wait_ready()
    return agent


def test_a_decision_is_one_trace_from_the_report_to_the_scalers_done(rig: Rig, traces: Collector) -> None:
    agent = start(rig, traces)
    decision_id, headers = asyncio.run(decide_and_apply(rig))
    assert agent.stop() == 0
    digest = hashlib.sha256(f"trace\0{decision_id}".encode()).digest()
    own = [span for span in traces.spans if span.trace_id == digest[:16]]
    spans = {span.name: span for span in own}
    assert sorted(spans) == ["accept", "announce", "apply", "commit", "decision", "plan"]
    assert len(own) == len(spans)
    root = spans.pop("decision")
    assert headers == {"traceparent": f"00-{digest[:16].hex()}-{digest[16:24].hex()}-01"}
    assert root.span_id == digest[16:24]
    assert not root.parent_span_id
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    steps = [spans[name] for name in ("plan", "commit", "announce", "accept", "apply")]
    assert all(before.end_time_unix_nano == after.start_time_unix_nano for before, after in itertools.pairwise(steps))
    assert root.start_time_unix_nano == steps[0].start_time_unix_nano
    assert root.end_time_unix_nano == steps[-1].end_time_unix_nano
    found = attributes(root)
    assert found["loadline.decision_id"] == decision_id
    assert found["loadline.outcome"] == "applied"
    assert found["loadline.replicas.decode"] == 3
    assert found["loadline.scaler"] == "hand"
    assert found["loadline.reporter"] in {"d1", "d2", "p1"}
    assert "decode:kv_usage_high" in {one.string_value for one in found["loadline.reasons"].values}
    resource = attributes(traces.requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "loadline"


def test_a_collector_that_fails_holds_nothing_up(rig: Rig, traces: Collector) -> None:
    traces.status = 503
    agent = start(rig, traces)
    asyncio.run(decide_and_apply(rig))
    assert agent.stop() == 0
