"""Snapshots of NVIDIA's simulator as messages to the agent, and the agent's counts as the answer."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from loadline.config import parse
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.errors import LoadlineError
from loadline.runtime.settings import settings
from loadline.sim.step import Stepper
from loadline.wire.messages import DecisionApplied, DrainReport, LoadReport, TrafficReport
from loadline.wire.steps import StepInput, StepItem
from tools.bench.peers.adapter import Adapter, configuration
from tools.bench.peers.lines import LineProcess
from tools.bench.peers.snapshots import BLOCK_TOKENS, KV_BLOCKS, Frontend, Pool, Snapshot

AGGREGATED: tuple[Role, ...] = ("aggregated",)
IDLE = {"duration_s": 1.0, "num_req": 0, "shape_count": 0, "ttft_count": 0, "itl_count": 0}


def snapshot(now_s: int, passes: Iterable[Snapshot] = (), traffic: Snapshot = IDLE, **ids: Iterable[int]) -> Snapshot:
    """Return a snapshot with workers by phase and role, such as ``active_decode=[0, 1]``."""
    found: Snapshot = {"now_ms": now_s * 1_000.0, "traffic": traffic, "prefill_fpm_snapshots": []}
    found["decode_fpm_snapshots"] = list(passes)
    for role in ("prefill", "decode"):
        for phase in ("starting", "active", "draining"):
            found[f"{phase}_{role}_ids"] = list(ids.get(f"{phase}_{role}", ()))
        found[f"non_draining_{role}_count"] = sum(len(found[f"{phase}_{role}_ids"]) for phase in ("starting", "active"))
    return found


def forward_pass(worker: int, **numbers: float) -> Snapshot:
    names = (
        "num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests",
        "sum_decode_kv_tokens", "num_queued_prefill", "num_queued_decode", "sum_queued_prefill_tokens", "wall_time",
    )  # fmt: skip
    return {"worker_id": worker, **dict.fromkeys(names, 0), **numbers}


def records(items: Iterable[StepItem]) -> list[WorkerRecord]:
    return [msgspec.json.decode(one.record, type=WorkerRecord) for one in items if one.record]


def phases(items: Iterable[StepItem]) -> dict[str, str]:
    return {record.worker: record.state for record in records(items)}


def payloads(items: Iterable[StepItem], kind: str) -> list[bytes]:
    """Return the messages of a kind, such as ``load``."""
    return [bytes(one.payload) for one in items if one.payload and str(one.subject).startswith(f"loadline.v1.{kind}.")]


def samples(items: Iterable[StepItem]) -> dict[str, WorkerSample]:
    reports = [msgspec.json.decode(payload, type=LoadReport) for payload in payloads(items, "load")]
    return {report.worker: report.samples[0] for report in reports}


def gone(items: Iterable[StepItem]) -> list[Any]:
    return [one.gone for one in items if one.gone]


# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_worker_is_registered_when_it_starts_and_reports_when_it_serves() -> None:
    pool = Pool("aggregated")
    items = list(pool.items(snapshot(1, active_decode=[0], starting_decode=[1])))
    assert phases(items) == {"aggregated-0": "ready", "aggregated-1": "starting"}
    assert list(samples(items)) == ["aggregated-0"]
    assert {record.incarnation for record in records(items)} == {1_000}
    items = list(pool.items(snapshot(2, active_decode=[0, 1])))
    assert phases(items) == {"aggregated-1": "ready"}
    assert {name: one.sequence for name, one in samples(items).items()} == {"aggregated-0": 2, "aggregated-1": 1}


def test_a_sample_has_the_last_forward_pass() -> None:
    traffic = IDLE | {"shape_count": 4, "avg_isl": 900.0, "ttft_count": 4, "avg_ttft_ms": 80.0}
    work = forward_pass(
        7, num_prefill_requests=1, sum_prefill_tokens=60, sum_prefill_kv_tokens=5, num_decode_requests=3,
        sum_decode_kv_tokens=BLOCK_TOKENS * 10, num_queued_prefill=2, num_queued_decode=1,
        sum_queued_prefill_tokens=2_000, wall_time=0.02,
    )  # fmt: skip
    [sample] = samples(Pool("aggregated").items(snapshot(1, [work], traffic, active_decode=[7]))).values()
    assert (sample.kv_blocks_used, sample.kv_blocks_total) == (12, KV_BLOCKS)  # 10 full ones and 65 tokens
    assert (sample.waiting_requests, sample.running_requests, sample.decode_batch_requests) == (3, 4, 3)
    assert (sample.queued_prefill_tokens, sample.active_prefill_tokens) == (2_000, 60)
    assert (sample.itl_ms, sample.iteration_ms, sample.ttft_ms, sample.isl_tokens) == (20.0, 20.0, 80.0, 900.0)


def test_a_worker_has_the_kv_blocks_of_its_engine() -> None:
    work = forward_pass(0, num_decode_requests=1, sum_decode_kv_tokens=10 * BLOCK_TOKENS)
    [sample] = samples(Pool("aggregated", 8).items(snapshot(1, [work], active_decode=[0]))).values()
    assert (sample.kv_blocks_used, sample.kv_blocks_total) == (8, 8)


def test_an_idle_worker_reports_zeros_and_no_latency() -> None:
    [sample] = samples(Pool("aggregated").items(snapshot(1, active_decode=[0]))).values()
    assert (sample.kv_blocks_used, sample.waiting_requests, sample.running_requests, sample.queued_prefill_tokens) == (
        0, 0, 0, 0,
    )  # fmt: skip
    assert (sample.itl_ms, sample.ttft_ms, sample.iteration_ms) == (None, None, None)


def test_each_role_reports_the_latency_that_it_causes() -> None:
    traffic = IDLE | {"ttft_count": 1, "avg_ttft_ms": 80.0}
    state = snapshot(1, [forward_pass(0, num_decode_requests=1, wall_time=0.01)], traffic, active_decode=[0])
    [decode] = samples(Pool("decode").items(state)).values()
    assert (decode.itl_ms, decode.ttft_ms) == (10.0, None)
    state = snapshot(1, (), traffic, active_prefill=[0])
    state["prefill_fpm_snapshots"] = [forward_pass(0, num_prefill_requests=1, wall_time=0.01)]
    [prefill] = samples(Pool("prefill").items(state)).values()
    assert (prefill.itl_ms, prefill.ttft_ms, prefill.iteration_ms) == (None, 80.0, 10.0)


# -- drains ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_the_simulator_drains_bears_the_name_that_the_agent_drains() -> None:
    pool = Pool("aggregated")
    list(pool.items(snapshot(1, active_decode=[0, 1, 2])))
    pool.drain("aggregated-0")
    items = list(pool.items(snapshot(2, active_decode=[0, 1], draining_decode=[2])))
    assert phases(items) == {"aggregated-0": "draining"}
    items = list(pool.items(snapshot(3, [forward_pass(0, num_decode_requests=5)], active_decode=[0, 1])))
    assert gone(items) == ["aggregated-0"]
    [drained] = payloads(items, "drained")
    assert msgspec.json.decode(drained, type=DrainReport) == DrainReport("m", "aggregated", "aggregated-0", 1_000)
    assert samples(items)["aggregated-2"].running_requests == 5  # worker 0 has the name that worker 2 had


def test_a_worker_that_goes_without_a_drain_keeps_its_name() -> None:
    pool = Pool("aggregated")
    list(pool.items(snapshot(1, active_decode=[0, 1])))
    items = list(pool.items(snapshot(2, active_decode=[1])))
    assert gone(items) == ["aggregated-0"]
    assert payloads(items, "drained") == []
    items = list(pool.items(snapshot(3, active_decode=[1, 2])))
    assert list(phases(items)) == ["aggregated-2"]  # names are not used twice


# -- traffic -----------------------------------------------------------------------------------------------------------


def test_the_frontend_counts_requests_in_flight() -> None:
    def report(**numbers: float) -> TrafficSample:
        payload = frontend.item(IDLE | numbers).payload
        assert payload
        return msgspec.json.decode(payload, type=TrafficReport).sample

    frontend = Frontend()
    first = report(num_req=10, duration_s=0.5)
    assert (first.arrivals, first.completed, first.in_flight, first.interval_ms) == (10, 0, 10, 500)
    assert (first.isl_tokens, first.osl_tokens, first.ttft_ms, first.itl_ms) == (None, None, None, None)
    second = report(shape_count=4, avg_isl=9, avg_osl=3, ttft_count=5, avg_ttft_ms=70, itl_count=4, avg_itl_ms=8)
    assert (second.sequence, second.completed, second.in_flight) == (2, 4, 6)
    assert (second.isl_tokens, second.osl_tokens, second.ttft_ms, second.itl_ms) == (9, 3, 70, 8)


# -- the agent ---------------------------------------------------------------------------------------------------------


def test_the_agent_rejects_nothing() -> None:
    roles: tuple[Role, ...] = ("prefill", "decode")
    agent = Stepper(settings(parse(configuration("saturation", roles, 8, 500.0, 50.0), "here")))
    pools, frontend = [Pool(role) for role in roles], Frontend()
    for now_s in range(1, 20):
        state = snapshot(now_s, [forward_pass(0, wall_time=0.01)], active_decode=[0], active_prefill=[0, 1])
        items = [one for pool in pools for one in pool.items(state)]
        answer = agent.step(StepInput(now_s * 1_000, [*items, frontend.item(IDLE)]))
        assert answer.rejected == []


def test_the_agent_scales_up_and_learns_that_it_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[StepInput] = []
    ask = LineProcess.ask

    def noted(process: LineProcess, line: bytes) -> bytes:
        steps.append(msgspec.json.decode(line, type=StepInput))
        return ask(process, line)

    monkeypatch.setattr(LineProcess, "ask", noted)
    full = [forward_pass(0, num_decode_requests=50, sum_decode_kv_tokens=60 * KV_BLOCKS, wall_time=0.1)]
    counts: list[dict[str, int]] = []
    with Adapter(configuration("saturation", AGGREGATED, 4, 500.0, 50.0), AGGREGATED, KV_BLOCKS) as adapter:
        for now_s in range(1, 30):
            starting = [1] if {"decode": 2} in counts else []
            counts.append(adapter.counts(snapshot(now_s, full, active_decode=[0], starting_decode=starting)))
    assert [one for one in counts if one] == [{"decode": 2}]
    [answer] = payloads([one for step in steps for one in step.frames], "applied")
    applied = msgspec.json.decode(answer, type=DecisionApplied)
    assert (applied.status, applied.observed) == ("done", {"aggregated": 2})


def test_a_configuration_that_the_agent_refuses_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    ended = pytest.raises(LoadlineError, match="loadline step ended")
    with Adapter("models = 1", AGGREGATED, KV_BLOCKS) as adapter, ended:
        adapter.counts(snapshot(1))
    assert "models" in capfd.readouterr().err
