"""End of a sidecar, on command and by SIGTERM."""

import asyncio

import pytest
from structlog.testing import capture_logs

from loadline.core.vocabulary.events import LoadReported, WorkerDrained
from loadline.sidecar import engine_state, sidecar
from tests.support.engine_pages import vllm
from tests.support.sidecar_rig import rig, scenario


def test_a_drained_engine_has_left_routing_before_it_is_found_empty() -> None:
    async def run() -> None:
        async with rig(vllm(running=1)) as made:
            record = await made.state_is("ready")
            assert (await made.drain(record.incarnation)).accepted
            await made.state_is("draining")
            await made.answers(5)
            assert not made.received(WorkerDrained)
            made.engine.body = vllm()
            await made.until(lambda: made.received(WorkerDrained))
            await made.state_is(None)
            await made.answers(5)
            assert made.running is not None
            assert not made.running.done(), "a restart policy would bring the drained worker back"
            made.sidecar.stop()
            await made.ended()

    scenario(run)


def test_a_drained_engine_that_is_gone_is_empty() -> None:
    async def run() -> None:
        async with rig(vllm(running=1)) as made:
            record = await made.state_is("ready")
            await made.drain(record.incarnation)
            await made.engine.stop()
            await made.until(lambda: made.received(WorkerDrained))

    scenario(run)


def test_a_drained_engine_whose_page_fails_is_not_taken_to_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """It streams on, and only its page answers 500, for longer than an engine that says nothing at all has."""
    monkeypatch.setattr(engine_state, "SILENCE_MAX_MS", 20)
    monkeypatch.setattr(engine_state, "STANDSTILL_MAX_MS", 60)

    async def run() -> None:
        async with rig(vllm(running=1)) as made:
            record = await made.state_is("ready")
            await made.drain(record.incarnation)
            made.engine.status = 500
            await made.until(lambda: made.sidecar._scraper.engine.away)
            began_s = asyncio.get_running_loop().time()
            await made.until(lambda: asyncio.get_running_loop().time() - began_s > 0.2)
            assert not made.received(WorkerDrained)
            made.engine.status, made.engine.body = 200, vllm()
            await made.until(lambda: made.received(WorkerDrained))

    scenario(run)


def test_a_stop_waits_for_the_requests_in_the_engine() -> None:
    async def run() -> None:
        async with rig(vllm(running=1)) as made:
            await made.state_is("ready")
            made.sidecar.stop()
            await made.state_is("draining")
            await made.answers(5)
            assert made.record() is not None
            made.engine.body = vllm()
            await made.ended()
            assert made.record() is None
            assert not made.received(WorkerDrained)

    scenario(run)


@pytest.mark.parametrize("grace_s", [0.0, 0.05])
def test_a_stop_ends_with_the_grace_period(grace_s: float) -> None:
    async def run() -> None:
        async with rig(vllm(running=1), grace_s=grace_s) as made:
            await made.state_is("ready")
            made.sidecar.stop()
            await made.ended()
            assert made.record() is None

    scenario(run)


def test_a_second_stop_ends_a_drain_that_is_not_reported_as_done() -> None:
    async def run() -> None:
        async with rig(vllm(running=1), grace_s=3_600.0) as made:
            record = await made.state_is("ready")
            await made.drain(record.incarnation)
            await made.state_is("draining")
            made.sidecar.stop()
            await made.answers(3)
            assert made.running is not None
            assert not made.running.done()
            made.sidecar.stop()
            await made.ended()
            assert not made.received(WorkerDrained)

    scenario(run)


def test_a_stop_during_a_drain_waits_for_its_report() -> None:
    async def run() -> None:
        async with rig(vllm(running=1)) as made:
            record = await made.state_is("ready")
            await made.drain(record.incarnation)
            await made.state_is("draining")
            made.sidecar.stop()
            made.engine.body = vllm()
            await made.ended()
            assert made.received(WorkerDrained)

    scenario(run)


def test_a_drained_worker_reports_no_load() -> None:
    async def run() -> None:
        async with rig() as made:
            record = await made.state_is("ready")
            await made.drain(record.incarnation)
            await made.until(lambda: made.received(WorkerDrained))
            await made.state_is(None)
            count = len(made.received(LoadReported))
            await made.answers(10)
            assert len(made.received(LoadReported)) == count

    scenario(run)


def test_a_decode_worker_is_not_registered_while_it_is_stopped() -> None:
    async def run() -> None:
        async with rig(vllm(running=1), role="decode") as made:
            await made.state_is("ready")
            made.sidecar.stop()
            await made.state_is(None)
            await made.answers(5)
            assert made.running is not None
            assert not made.running.done()

    scenario(run)


def test_a_drained_sidecar_that_would_be_restarted_waits_after_it_has_ended_its_engine() -> None:
    async def run() -> None:
        async with rig(vllm(), command=("sleep", "600"), wait_after_drain=True) as made:
            record = await made.state_is("ready")
            assert (await made.drain(record.incarnation)).accepted
            await made.until(lambda: made.received(WorkerDrained))
            await made.state_is(None)
            assert made.running is not None
            waits = {"event": "drained", "detail": "waits for SIGTERM"}
            running = made.running
            await made.until(lambda: running.done() or any(waits.items() <= line.items() for line in lines))
            assert not running.done(), "the kubelet would bring the drained worker back"
            made.sidecar.stop()
            await made.ended()

    with capture_logs() as lines:
        scenario(run)


@pytest.mark.parametrize("command", [(), ("sleep", "600")])
def test_a_drained_sidecar_that_nobody_removes_ends_so_that_its_worker_returns(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    async def run() -> None:
        async with rig(vllm(), command=command, wait_after_drain=True) as made:
            record = await made.state_is("ready")
            assert (await made.drain(record.incarnation)).accepted
            await made.ended()
            assert made.received(WorkerDrained)

    monkeypatch.setattr(sidecar, "_REMOVAL_S", -59.9)  # the command has 60 s
    scenario(run)
