"""API of an agent: status, explanations, pauses and drains."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable

import msgspec
import pytest
from structlog.testing import capture_logs

from loadline import app
from loadline.config import Config, NatsKnobs, parse
from loadline.core.fleet.pool import DRAINS_MAX
from loadline.core.migration.outcomes import MigrationCode, PairReport, PolicyReport
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    PauseChanged,
    PauseRequested,
    RegistryRead,
    SettingsChanged,
)
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.core.vocabulary.status import AgentStatus, ModelStatus
from loadline.runtime import slices
from loadline.runtime.loop import Runtime
from loadline.runtime.service import EXPLANATIONS_MAX, Service
from loadline.runtime.slices import run_in_slices
from loadline.runtime.status_parts import PART_BYTES_MAX, STATUS_BYTES_MAX, join_status
from loadline.web.event_streams import EventStreams
from loadline.web.live_page import LivePage
from loadline.wire.codec import encode
from loadline.wire.messages import DrainOrder, ExplainReply, ExplainRequest, OperatorReply, PauseCommand, StatusRequest
from tests.support.memory import MemoryBus
from tests.support.service import service_of
from tests.waiting import until

POOLS = 64
POOL = '[[models.pools]]\nname = "pool-{}"\nrole = "aggregated"\n'


def config(pools: int) -> Config:
    return parse('[[models]]\nname = "m"\n' + "".join(POOL.format(i) for i in range(pools)), "test")


def order(service: Service, *, paused: bool) -> Coroutine[object, object, bytes | None]:
    return service._pause(encode(PauseCommand("m", "me")), paused=paused)


def lead(runtime: Runtime) -> None:
    state, now = runtime.controller.state, runtime.clock.now_ms()
    runtime.controller.handle([BusConnectionChanged(connected=True)], now)
    state.store_connected, state.leadership.phase = True, "leading"
    state.leadership._extend(now)


def run_scenario(scenario: Callable[[Runtime, Service], Awaitable[None]], pools: int = 1) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await scenario(*service_of(config(pools)))

    asyncio.run(run())


async def frames(service: Service) -> list[bytes]:
    """Return the status as messages."""
    found, _ = await run_in_slices(service._frames())
    return found


def memory(runtime: Runtime) -> MemoryBus:
    assert isinstance(runtime.bus, MemoryBus)
    return runtime.bus


def reply(payload: bytes | None) -> OperatorReply:
    assert payload is not None
    return msgspec.json.decode(payload, type=OperatorReply)


def test_a_pause_that_cannot_be_written_is_refused() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        answer = reply(await order(service, paused=True))
        assert not answer.accepted
        assert "etcd is not connected" in answer.detail
        assert not runtime.inbox

    run_scenario(scenario)


def test_commands_are_answered_in_order_once_they_are_in_force() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        lead(runtime)
        pause = asyncio.ensure_future(order(service, paused=True))
        resume = asyncio.ensure_future(order(service, paused=False))
        for number, paused, answer in ((1, True, pause), (2, False, resume)):
            await until(lambda: bool(runtime.inbox))
            assert runtime.inbox.pop_batch(10) == ([PauseRequested("m", paused, "me", number)], [])
            assert not answer.done()
            runtime.controller.handle([PauseChanged("m", paused, "me", number, number)], runtime.clock.now_ms())
            assert reply(await answer).accepted

    run_scenario(scenario)


@pytest.mark.parametrize("paused", [True, False])
def test_a_command_overrides_an_unconfirmed_one(*, paused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        lead(runtime)
        now = runtime.clock.now_ms()
        runtime.controller.handle([PauseChanged("m", not paused, "me", 1)], now)
        with monkeypatch.context() as patched:
            patched.setattr("loadline.runtime.service.PAUSE_CONFIRM_S", 0.0)
            assert not reply(await order(service, paused=paused)).accepted
        runtime.inbox.pop_batch(10)
        undo = asyncio.ensure_future(order(service, paused=not paused))
        await until(lambda: bool(runtime.inbox))
        assert runtime.inbox.pop_batch(10)[0] == [PauseRequested("m", not paused, "me", 2)], "it seems done already"
        runtime.controller.handle([PauseChanged("m", paused, "me", 2, 1)], now)  # the first write ends late
        runtime.controller.handle([PauseChanged("m", not paused, "me", 3, 2)], now)
        assert reply(await undo).accepted
        runtime.controller.handle([PauseChanged("m", paused, "me", 2)], now)  # and is reported later still
        assert ("m" in runtime.controller.state.paused) is not paused

    run_scenario(scenario)


def test_a_command_is_not_confirmed_by_the_write_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadline.runtime.service.PAUSE_CONFIRM_S", 0.0)

    async def scenario(runtime: Runtime, service: Service) -> None:
        lead(runtime)
        await order(service, paused=True)
        runtime.controller.handle([PauseChanged("m", True, "me", 1, 1)], runtime.clock.now_ms())  # noqa: FBT003
        assert "not confirmed" in reply(await order(service, paused=True)).detail

    run_scenario(scenario)


def test_an_agent_that_does_not_lead_refuses_a_pause() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        runtime.controller.state.store_connected = True
        answer = reply(await order(service, paused=True))
        assert (answer.accepted, answer.detail) == (False, "this agent does not lead 'm'; ask again")
        assert not runtime.inbox

    run_scenario(scenario)


def test_a_drain_beyond_the_limit_of_its_pool_is_refused() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        names = [f"w{number}" for number in range(DRAINS_MAX + 1)]
        records = [WorkerRecord("m", "pool-0", name, "aggregated", 1) for name in names]
        now, state = runtime.clock.now_ms(), runtime.controller.state
        runtime.controller.handle([RegistryRead([RegisteredWorker(record, 5) for record in records])], now)
        for name in names[:-1]:
            assert reply(await service._drain(encode(DrainOrder("m", "pool-0", name)))).accepted
            state.drains.start(state.fleet, "m", "pool-0", Victim(name, 1), "id", now)
        refused = reply(await service._drain(encode(DrainOrder("m", "pool-0", names[-1]))))
        assert (refused.accepted, refused.detail.split(" ")[0]) == (False, str(DRAINS_MAX))

    run_scenario(scenario)


def test_a_pause_is_confirmed_only_after_it_was_read_back() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        lead(runtime)
        answer = reply(await order(service, paused=True))
        assert not answer.accepted
        assert "loadline status" in answer.detail

    run_scenario(scenario)


def test_a_large_status_omits_its_workers() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        workers = [
            RegisteredWorker(WorkerRecord("m", f"pool-{i}", f"worker-{i}-{j:0100}", "aggregated", incarnation=1), 5)
            for i in range(POOLS)
            for j in range(64)
        ]
        small = msgspec.json.decode((await frames(service))[0], type=AgentStatus)
        assert small.models[0].pools[0].workers == ()
        runtime.controller.handle([RegistryRead(workers[:64])], runtime.clock.now_ms())
        listed = msgspec.json.decode((await frames(service))[0], type=AgentStatus)
        assert len(listed.models[0].pools[0].workers) == 64
        runtime.controller.handle([RegistryRead(workers)], runtime.clock.now_ms())
        full, _ = await run_in_slices(service.status())
        assert len(encode(full)) > STATUS_BYTES_MAX
        payload = (await frames(service))[0]
        assert len(payload) <= STATUS_BYTES_MAX
        status = msgspec.json.decode(payload, type=AgentStatus)
        assert {(pool.ready, pool.workers) for pool in status.models[0].pools} == {(64, ())}

    run_scenario(scenario, POOLS)


def test_a_status_of_1024_models_is_sent_in_parts_of_bounded_size() -> None:
    models = "".join(f'[[models]]\nname = "model-{i:04}"\n{POOL.format(1)}{POOL.format(2)}' for i in range(1_024))

    async def scenario() -> None:
        runtime, service = service_of(parse(models, "test"))
        names = [knobs.name for knobs in runtime.controller.settings.models]
        runtime.controller.state.counters["turns"] = 5
        shown = LivePage(lambda: len(names), lambda: [runtime.controller.state], EventStreams())
        publishing = asyncio.ensure_future(service.publish_status(3_600_000, shown.offer))
        subject = runtime.subjects.status(runtime.controller.settings.agent)
        published = [payload for to, payload in memory(runtime).published if to == subject]
        while not published:
            await asyncio.sleep(0)
            published = [payload for to, payload in memory(runtime).published if to == subject]
        publishing.cancel()
        assert max(map(len, published)) <= PART_BYTES_MAX < NatsKnobs().frame_bytes_max
        parts = [msgspec.json.decode(payload, type=AgentStatus) for payload in published]
        assert [(part.part, part.parts) for part in parts] == [(n, len(parts)) for n in range(len(parts))]
        assert [model.model for part in parts for model in part.models] == names
        assert [part.counters for part in parts] == [{"turns": 5}, *[{}] * (len(parts) - 1)], "in the first part only"
        first = msgspec.json.decode(await service._status(b""), type=AgentStatus)
        answers = [await service._status(encode(StatusRequest(part))) for part in range(first.parts)]
        answer = join_status([msgspec.json.decode(payload, type=AgentStatus) for payload in answers])
        assert ([model.model for model in answer.models], answer.part, answer.parts) == (names, 0, 1)
        assert await service._status(encode(StatusRequest(99))), "the last part"

    asyncio.run(scenario())


def test_a_status_is_published_at_each_interval_though_its_page_fails_or_hangs() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        class Broken(LivePage):
            async def update(self, status: AgentStatus) -> None:
                updates.append(status)
                if len(updates) == 1:
                    raise RuntimeError("a defect of the page")
                await asyncio.Event().wait()

        updates: list[AgentStatus] = []
        page = Broken(lambda: 1, lambda: [runtime.controller.state], EventStreams())
        tasks = [asyncio.create_task(page.run()), asyncio.create_task(service.publish_status(1, page.offer))]
        await until(lambda: len(updates) > 1, "the page hangs")
        before = len(memory(runtime).published)
        await until(lambda: len(memory(runtime).published) > before + 5, "more statuses")
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()

    run_scenario(scenario)


def test_a_status_that_cannot_be_computed_is_logged_and_the_next_is_published() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        computed = 0
        whole = service._frames

        def frames() -> slices.Steps[list[bytes]]:
            nonlocal computed
            computed += 1
            if computed == 1:
                raise OverflowError("cannot convert float infinity to integer")
            return (yield from whole())

        service._frames = frames  # type: ignore[method-assign]
        shown: list[AgentStatus] = []
        publishing = asyncio.create_task(service.publish_status(1, shown.append))
        await until(lambda: bool(shown) or publishing.done())
        assert (bool(memory(runtime).published), publishing.done()) == (True, False)
        publishing.cancel()

    with capture_logs() as logs:
        run_scenario(scenario)
    (log,) = logs
    assert (log["event"], log["detail"]) == (
        "status_not_published",
        "OverflowError('cannot convert float infinity to integer')",
    )


def test_a_sample_that_cannot_be_computed_is_logged_and_the_next_is_written() -> None:
    written: list[list[str]] = []

    class Files:
        lost = 0

        async def write(self, models: Iterable[ModelStatus]) -> None:
            written.append([model.model for model in models])
            if len(written) == 1:
                raise RuntimeError("can't start new thread")

    async def scenario(_: Runtime, service: Service) -> None:
        writing = asyncio.create_task(service.write_samples(1, Files()))
        await until(lambda: len(written) > 1 or writing.done())
        assert not writing.done()
        writing.cancel()

    with capture_logs() as logs:
        run_scenario(scenario)
    assert [log["event"] for log in logs] == ["sample_not_written"]


def test_a_turn_may_remove_a_model_while_the_status_is_computed() -> None:
    before, after = (
        parse("".join(f'[[models]]\nname = "{name}"\n{POOL.format(1)}' for name in names), "test")
        for names in ("abc", "ac")
    )

    async def scenario() -> None:
        runtime, service = service_of(before)
        steps = service._frames()
        next(steps)
        change = SettingsChanged(msgspec.Raw(msgspec.json.encode(app.settings(after))))
        runtime.controller.handle([change], runtime.clock.now_ms())
        (frame,), _ = await run_in_slices(steps)
        assert [model.model for model in msgspec.json.decode(frame, type=AgentStatus).models] == ["a", "c"]

    asyncio.run(scenario())


def test_a_status_of_many_models_is_computed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)

    async def scenario() -> None:
        models = "".join(f'[[models]]\nname = "{name}"\n{POOL.format(1)}' for name in "abc")
        _, service = service_of(parse(models, "test"))
        answering = asyncio.ensure_future(service._status(b""))
        paused = 0
        while not answering.done():
            paused += 1
            await asyncio.sleep(slices.PAUSE_S)
        assert paused > len("abc"), "the loop runs after each model"

    asyncio.run(scenario())


def test_an_explanation_has_the_last_policy_reports_and_fits_into_a_message() -> None:
    async def scenario(runtime: Runtime, service: Service) -> None:
        pair = PairReport("a" * 64, "b" * 64, MigrationCode.NO_ROOM, {"tokens": 1.5, "room": 0.5})
        report = PolicyReport(
            "m", "decode_load", "decode", 1, MigrationCode.NO_ROOM, pair.numbers, 16, 16, (pair,) * 16
        )
        memory = runtime.controller.state.fleet.models["m"].migration
        for number in range(2 * EXPLANATIONS_MAX):
            memory.group(f"{number:04}").reports["decode_load"] = report
        answer = await service._explain(encode(ExplainRequest(model="m")))
        assert answer is not None
        assert msgspec.json.decode(answer, type=ExplainReply) == ExplainReply([], [report] * EXPLANATIONS_MAX)
        assert len(answer) < 1_000_000
        answer = await service._explain(encode(ExplainRequest("d")))
        assert answer is not None
        assert msgspec.json.decode(answer, type=ExplainReply).migrations == []

    run_scenario(scenario)
