"""Sidecar through the life of its engine."""

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from loadline.core.vocabulary.events import LoadReported, TrafficReported
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import AddressTaken, ConfigError, StoreUnavailable, WorkerSuperseded
from loadline.ports import Write
from loadline.sidecar import engine_record, sidecar
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from tests.support.engine_pages import vllm
from tests.support.engine_server import EngineServer, engine_server
from tests.support.sidecar_rig import NAMES, SidecarRig, rig, scenario


def test_an_engine_is_registered_with_what_it_tells() -> None:
    async def run() -> None:
        async with rig(vllm(running=2, waiting=1, usage=0.5), gpus=2, accelerator="h100", node="n") as made:
            record = await made.state_is("ready")
            assert (record.model, record.pool, record.role) == ("tiny", "aggregated", "aggregated")
            assert (record.kv_blocks_total, record.block_size_tokens, record.data_parallel_size) == (1_000, 16, 1)
            assert (record.gpus, record.accelerator, record.node) == (2, "h100", "n")
            assert record.base_url == made.engine.url
            await made.until(lambda: made.received(LoadReported))
            [sample] = made.received(LoadReported)[-1].samples
            assert (sample.running_requests, sample.waiting_requests, sample.kv_blocks_used) == (2, 1, 500)

    scenario(run)


def test_an_engine_that_does_not_answer_yet_is_not_registered() -> None:
    async def run() -> None:
        async with rig(b"<html>starting</html>\n") as made:
            await made.answers(5)
            assert made.record() is None
            made.engine.body = vllm()
            await made.state_is("ready")

    scenario(run)


@pytest.mark.parametrize("broken", [b"<html>\n", b"", b"vllm:num_requests_running 1", b"\xff" * 100])
def test_an_engine_whose_metrics_break_stays_registered_and_is_silent(broken: bytes) -> None:
    async def run() -> None:
        async with rig() as made:
            before = await made.state_is("ready")
            made.engine.body = broken
            await made.answers(3)
            count = len(made.received(LoadReported))
            await made.answers(20)
            assert len(made.received(LoadReported)) == count
            assert made.record() == before
            made.engine.body = vllm()
            await made.until(lambda: len(made.received(LoadReported)) > count)

    scenario(run)


def test_a_reading_is_reported_once() -> None:
    async def run() -> None:
        async with rig() as made:
            await made.state_is("ready")
            made.engine.may_answer.clear()
            await made.answers(1)
            count = len(made.received(LoadReported))
            assert made.sidecar._reports.samples() == []
            assert len(made.received(LoadReported)) == count
            made.engine.may_answer.set()

    scenario(run)


def test_an_engine_that_was_started_again_is_a_new_incarnation() -> None:
    async def run() -> None:
        async with rig(vllm(finished=100)) as made:
            before = await made.state_is("ready")
            made.engine.body = vllm(finished=1, started_s=1.8e9, blocks="500")

            def is_new() -> bool:
                record = made.record()
                return record is not None and record.incarnation > before.incarnation and record.state == "ready"

            await made.until(is_new)
            after = made.record()
            assert after is not None
            assert after.kv_blocks_total == 500

    scenario(run)


def test_an_engine_that_is_gone_is_starting_until_it_is_back() -> None:
    async def run() -> None:
        async with rig(vllm(finished=100)) as made:
            before = await made.state_is("ready")
            await made.engine.stop()
            away = await made.state_is("starting")
            assert away.incarnation > before.incarnation
            made.engine.body = vllm(started_s=1.8e9)
            await made.engine.start()
            back = await made.state_is("ready")
            assert back.incarnation == away.incarnation
            made.bus.published.clear()
            await made.until(lambda: made.received(LoadReported))
            assert made.received(LoadReported)[-1].incarnation == back.incarnation

    scenario(run)


def test_an_engine_that_tells_of_another_rank_later_is_registered_with_both() -> None:
    async def run() -> None:
        async with rig() as made:
            before = await made.state_is("ready")
            made.engine.body = vllm() | vllm(rank=1)

            def has_both() -> bool:
                record = made.record()
                return record is not None and record.data_parallel_size == 2 and record.state == "ready"

            await made.until(has_both)
            after = made.record()
            assert after is not None
            assert after.incarnation > before.incarnation

    scenario(run)


def test_an_engine_that_comes_back_with_another_cache_is_registered_anew() -> None:
    async def run() -> None:
        async with rig() as made:
            await made.state_is("ready")
            await made.engine.stop()
            away = await made.state_is("starting")
            made.engine.body = vllm(started_s=1.8e9, blocks="77")
            await made.engine.start()
            back = await made.state_is("ready")
            assert back.incarnation > away.incarnation
            assert back.kv_blocks_total == 77

    scenario(run)


@pytest.mark.parametrize(("node", "taken"), [("n", True), ("other", False)])
def test_an_engine_of_another_worker_is_refused(node: str, *, taken: bool) -> None:
    async def run() -> None:
        async with engine_server() as engine:
            engine.body = vllm()
            made = SidecarRig(engine, node="n")
            other = WorkerRecord("tiny", "p", "other", "aggregated", 1, address=f"{engine.url}/", node=node)
            await made.store.commit([], [Write(Keys("default").worker(*other.names), encode(other))])
            made.start()
            if taken:
                with pytest.raises(AddressTaken, match="is registered as worker other of pool p"):
                    await made.ended()
                assert made.record() is None
            else:  # each machine has a 127.0.0.1
                await made.state_is("ready")
                made.sidecar.stop()
                await made.ended()

    scenario(run)


async def rig_at_a_taken_address(engine: EngineServer) -> tuple[SidecarRig, str]:
    """Return a sidecar that starts an engine, and the key of the worker that had its address."""
    engine.body = vllm()
    made = SidecarRig(engine, node="n", lease_ttl_s=1, command=["sleep", "600"])
    other = WorkerRecord("tiny", "p", "other", "aggregated", 1, address=engine.url, node="n")
    key = Keys("default").worker(*other.names)
    await made.store.commit([], [Write(key, encode(other))])
    return made, key


@pytest.mark.parametrize("expires", [True, False])
def test_an_engine_that_was_started_here_waits_for_the_entry_of_another_worker_to_expire(*, expires: bool) -> None:
    """The process of that worker has ended, since the engine could listen on its address."""

    async def run() -> None:
        async with engine_server() as engine:
            made, key = await rig_at_a_taken_address(engine)
            with capture_logs() as logs:
                made.start()
                await made.until(lambda: any(line["event"] == "address_taken" for line in logs))
                assert made.record() is None
                if expires:
                    await made.store.commit([], [Write(key, None)])
                    await made.state_is("ready")
                    made.sidecar.stop()
                    await made.ended()
                else:
                    with pytest.raises(AddressTaken, match="is registered as worker other of pool p"):
                        await made.ended()

    scenario(run)


@pytest.mark.parametrize("seen_before", [False, True])
def test_the_time_in_which_an_entry_expires_begins_after_an_outage(
    monkeypatch: pytest.MonkeyPatch, *, seen_before: bool
) -> None:
    """While etcd is away no lease ends, and its new leader begins all anew."""

    async def run() -> None:
        async with engine_server() as engine:
            made, key = await rig_at_a_taken_address(engine)
            check, loop = engine_record.check_address, asyncio.get_running_loop()
            outage, checks_after = 3.5, 0
            began_s: float | None = None

            async def check_during_outage(*arguments: Any) -> None:
                nonlocal began_s, checks_after
                if began_s is None:
                    began_s = loop.time()
                    if seen_before:
                        await check(*arguments)
                if loop.time() < began_s + outage:
                    raise StoreUnavailable("no leader")
                checks_after += 1
                await check(*arguments)

            monkeypatch.setattr(sidecar, "check_address", check_during_outage)
            made.start()
            await made.until(lambda: checks_after)
            await made.store.commit([], [Write(key, None)])
            await made.state_is("ready")
            made.sidecar.stop()
            await made.ended()

    scenario(run)


def test_the_entry_of_a_sidecar_that_was_killed_is_taken_over() -> None:
    async def run() -> None:
        async with engine_server() as engine:
            engine.body = vllm()
            made = SidecarRig(engine)
            before = WorkerRecord(*NAMES, "aggregated", 1, address=engine.url)
            await made.store.commit([], [Write(Keys("default").worker(*NAMES), encode(before))])
            made.start()
            after = await made.state_is("ready")
            if after == before:
                await made.until(lambda: made.record() != before)
            await made.until(lambda: made.received(LoadReported))
            made.sidecar.stop()
            await made.ended()

    scenario(run)


def test_a_worker_of_the_same_name_that_started_later_supersedes() -> None:
    async def run() -> None:
        async with rig(lease_ttl_s=1) as made:
            record = await made.state_is("ready")
            later = msgspec.structs.replace(record, incarnation=record.incarnation + 10**6)
            await made.store.commit([], [Write(Keys("default").worker(*record.names), encode(later))])
            with pytest.raises(WorkerSuperseded):
                await made.ended()
            assert made.record() == later

    scenario(run)


def test_an_engine_that_names_no_model_needs_the_option() -> None:
    async def run() -> None:
        series: dict[str, float | str] = {"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0}
        async with rig(series) as made:
            with pytest.raises(ConfigError, match="--model"):
                await made.ended()
        async with rig(series, model="tiny") as made:
            await made.state_is("ready")

    scenario(run)


@pytest.mark.parametrize("name", ["y" * 101, "/models/" + "y" * 10_000, "a\\nb"])
def test_a_model_name_that_agents_refuse_needs_the_option(name: str) -> None:
    async def run() -> None:
        series = {line.replace('"tiny"', f'"{name}"'): value for line, value in vllm().items()}
        async with rig(series) as made:
            with pytest.raises(ConfigError, match="Add --model NAME") as caught:
                await made.ended()
            assert len(str(caught.value)) < 400
        async with rig(series, model="tiny") as made:
            await made.state_is("ready")

    scenario(run)


def test_traffic_is_reported_on_request_only() -> None:
    async def run() -> None:
        for reports in (True, False):
            async with rig(vllm(finished=5), report_traffic=reports) as made:
                await made.state_is("ready")
                await made.answers(2)
                made.engine.body = vllm(finished=8, outputs=(3, 300), running=2)
                await made.answers(5)
                traffic = [event.sample for event in made.received(TrafficReported)]
                assert sum(sample.completed for sample in traffic) == (3 if reports else 0)
                assert sum(sample.arrivals for sample in traffic) == (5 if reports else 0)
                assert [sample.sequence for sample in traffic] == list(range(1, len(traffic) + 1))

    scenario(run)
