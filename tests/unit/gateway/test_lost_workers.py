"""Requests whose workers are killed, cut off, replaced or aborted get an answer as long as one engine can give it."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from loadline.gateway.attempts import Attempts
from loadline.gateway.errors import ApiError
from tests.support.fake_engine import FakeEngine, Gate, greedy
from tests.support.gateway_rig import MODEL, GatewayRig, gateway_rig, record
from tests.support.moving_streams import CHAT, COMPLETIONS, TOKENS, asked, at_gate
from tests.support.raw_engine import STREAM, RawEngine
from tests.support.virtual_time import run_virtual
from tests.waiting import until

WHOLE = {"model": MODEL, "prompt": "abc"}
EXPECTED = greedy("abc", TOKENS, ignore_eos=True)[0]
streamed_or_whole = pytest.mark.parametrize("stream", [True, False])


def answer(status: int, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close"
    return head.encode() + b"\r\n\r\n" + data


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def status_of(rig: GatewayRig, *, stream: bool) -> int:
    if stream:
        return (await rig.stream(**WHOLE)).status
    status, _ = await rig.post(COMPLETIONS, WHOLE)
    return status


NO_MODEL = answer(404, {"error": {"message": "The model does not exist."}})
"""Answer of another model's engine, which was started at the address of a worker that was killed."""


@streamed_or_whole
def test_the_time_in_the_queue_of_an_engine_that_dies_does_not_count_as_waiting_for_a_worker(*, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig(1, hold_s=0.5) as (rig, [dying]), FakeEngine() as replacement:
            dying.pace = gate = Gate(0)
            asking = asyncio.create_task(status_of(rig, stream=stream))
            await at_gate(gate)
            await asyncio.sleep(0.6)
            await dying.kill()
            rig.model.backends.update([])
            await until(lambda: rig.frontend.queued == 1, "it waits for a worker")
            rig.register([replacement])
            assert await asking == 200

    asyncio.run(scenario())


@streamed_or_whole
def test_a_whole_answer_that_its_engine_aborted_is_asked_for_again(*, stream: bool) -> None:
    choice = {"index": 0, "text": "", "finish_reason": "abort"}

    async def scenario() -> None:
        async with (
            gateway_rig(0) as (rig, _),
            RawEngine(answer(200, {"choices": [choice]})) as ending,
            FakeEngine() as good,
        ):
            rig.model.backends.update([record("a", ending.address), record("b", good.address)])
            if stream:
                assert (await rig.stream(**asked(COMPLETIONS))).finish == "length"
            else:
                status, got = await rig.post(COMPLETIONS, WHOLE)
                assert (status, got["choices"][0]["finish_reason"]) == (200, "length")

    asyncio.run(scenario())


def test_a_stream_that_cannot_move_and_was_aborted_before_its_output_begins_anew() -> None:
    choice = {"index": 0, "text": "", "finish_reason": "abort"}

    async def scenario() -> None:
        raw = STREAM + event({"id": "x", "choices": [choice]}) + b"data: [DONE]\n\n"
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as ending, FakeEngine() as good:
            rig.model.backends.update([record("a", ending.address), record("b", good.address)])
            assert (await rig.stream(**asked(COMPLETIONS, seed=1))).finish == "length"

    asyncio.run(scenario())


def test_the_only_worker_is_asked_again_after_some_seconds_if_an_engine_of_another_model_is_there() -> None:
    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), RawEngine(NO_MODEL) as stale, FakeEngine() as good:
            rig.model.backends.update([record("old", stale.address)])
            asking = asyncio.create_task(rig.post(COMPLETIONS, WHOLE))
            await asyncio.sleep(4)
            assert stale.requests == 1
            rig.model.backends.update([record("new", good.address)])
            assert (await asking)[0] == 200

    run_virtual(scenario())


def test_the_only_worker_is_asked_again_after_a_pause_and_one_that_comes_at_once() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with gateway_rig(0) as (rig, _), RawEngine(answer(503, {})) as busy, FakeEngine() as good:
            rig.model.backends.update([record("a", busy.address)])
            began_s = loop.time()
            assert (await rig.post(COMPLETIONS, WHOLE))[0] == 503
            assert loop.time() - began_s == pytest.approx(2.0, abs=0.1)
            asking = asyncio.create_task(rig.post(COMPLETIONS, WHOLE))
            await asyncio.sleep(0.5)
            rig.model.backends.update([record("a", busy.address), record("b", good.address)])
            assert (await asking)[0] == 200

    run_virtual(scenario())


@pytest.mark.parametrize(("status", "body"), [(503, {}), (404, {"detail": "Not Found"})])
def test_an_error_of_one_request_keeps_no_other_from_its_worker(status: int, body: dict[str, Any]) -> None:
    """SGLang answers 503 to a request whose priority it does not take, or while its queue is full."""

    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), RawEngine(answer(status, body)) as engine:
            rig.model.backends.update([record("a", engine.address)])
            await rig.post(COMPLETIONS, WHOLE)
            [backend] = rig.model.backends.ready
            assert backend.unreachable_until_s == 0.0

    asyncio.run(scenario())


def test_a_worker_that_does_not_serve_the_model_does_not_attract_all_requests() -> None:
    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), RawEngine(NO_MODEL) as stale, FakeEngine() as good:
            rig.model.backends.update([record("a", stale.address), record("b", good.address)])
            for _ in range(5):
                assert (await rig.post(COMPLETIONS, WHOLE))[0] == 200
            assert stale.requests == 1

    asyncio.run(scenario())


def test_an_engine_that_cannot_tell_the_text_of_tokens_is_not_believed() -> None:
    """The first engine dies within a character, and the second one serves another model."""

    async def scenario(cut: int) -> None:
        dying, other, good = FakeEngine(chunk_tokens=3), RawEngine(NO_MODEL), FakeEngine()
        dying.die_after = cut
        async with gateway_rig(0) as (rig, _), dying, other, good:
            addresses = dying.address, other.address, good.address
            rig.model.backends.update([record(name, one) for name, one in zip("abc", addresses, strict=True)])
            assert (await rig.stream(**asked(COMPLETIONS))).text == EXPECTED

    for cut in range(3, TOKENS, 3):
        asyncio.run(scenario(cut))


def test_the_usage_is_sent_once() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    choice = {"index": 0, "text": "a", "token_ids": [97], "prompt_token_ids": [97, 98, 99], "finish_reason": "stop"}

    async def scenario() -> None:
        raw = STREAM + event({"id": "x", "choices": [choice]}) + event({"id": "x", "choices": [], "usage": usage})
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as dying:
            rig.model.backends.update([record("a", dying.address)])
            got = await rig.stream(**asked(COMPLETIONS))
            assert [chunk["usage"] for chunk in got.chunks if chunk.get("usage")] == [usage]
            assert got.complete

    asyncio.run(scenario())


def test_requests_that_had_a_worker_are_not_refused_when_many_wait() -> None:
    async def scenario() -> None:
        async with gateway_rig(1, held_max=2) as (rig, [dying]), FakeEngine() as replacement:
            dying.pace = Gate(9)
            streams = [asyncio.create_task(rig.stream(**asked(COMPLETIONS))) for _ in range(4)]
            await until(lambda: dying.open == len(streams))
            await at_gate(dying.pace)
            await dying.kill()
            rig.model.backends.update([])
            await until(lambda: rig.frontend.queued == len(streams), "they wait")
            status, _ = await rig.post(COMPLETIONS, WHOLE)
            assert status == 503, "a new request is refused"
            rig.register([replacement])
            assert all([(await one).text == EXPECTED for one in streams])

    asyncio.run(scenario())


def test_a_stream_between_two_engines_is_not_refused_when_the_gateway_ends() -> None:
    async def scenario() -> None:
        async with gateway_rig(1) as (rig, [dying]), FakeEngine() as replacement:
            dying.pace = Gate(9)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(dying.pace)
            rig.model.backends.stop_holding(30.0)
            await dying.kill()
            rig.model.backends.update([])
            await until(lambda: rig.frontend.queued == 1, "it waits")
            status, refused = await rig.post(COMPLETIONS, WHOLE)
            assert (status, refused["error"]["message"]) == (503, "the gateway ends")
            rig.register([replacement])
            assert (await streaming).text == EXPECTED

    asyncio.run(scenario())


class SlowModels(FakeEngine):
    """An engine whose server is busy."""

    async def _models(self, request: web.Request) -> web.Response:
        await asyncio.sleep(8)
        return await super()._models(request)


def test_engines_may_take_seconds_to_list_their_models() -> None:
    async def scenario() -> None:
        async with gateway_rig(1) as (rig, [dying]), SlowModels() as slow:
            dying.die_after = 9
            rig.model.backends.update([record("a", dying.address), record("b", slow.address)])
            assert (await rig.stream(CHAT, messages=[{"role": "user", "content": "abc"}])).complete

    run_virtual(scenario())


def test_a_finished_stream_ends_when_its_engine_is_silent_for_the_usual_time() -> None:
    choice = {"index": 0, "text": "a", "token_ids": [97], "prompt_token_ids": [97, 98, 99], "finish_reason": "stop"}

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        raw = STREAM + event({"id": "x", "choices": [choice]})
        async with gateway_rig(0, stall_s=6) as (rig, _), RawEngine(raw, hangs=True) as engine:
            rig.model.backends.update([record("a", engine.address)])
            began_s = loop.time()
            assert (await rig.stream(**asked(COMPLETIONS))).complete
            assert loop.time() - began_s == pytest.approx(6, abs=1.5)

    run_virtual(scenario())


class WithoutDetokenize(FakeEngine):
    """An engine, or a proxy before it, that has the endpoints of the API only."""

    async def _detokenize(self, _request: web.Request) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)


def test_a_stream_continues_at_engines_that_cannot_tell_the_text_of_tokens() -> None:
    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), FakeEngine(chunk_tokens=3) as dying, WithoutDetokenize() as other:
            dying.die_after = 9
            rig.model.backends.update([record("a", dying.address), record("b", other.address)])
            assert (await rig.stream(**asked(COMPLETIONS))).complete

    asyncio.run(scenario())


def test_the_only_engine_is_waited_for_while_its_sidecar_is_away() -> None:
    async def scenario() -> None:
        async with gateway_rig(1) as (rig, [engine]):
            rig.session._timeout = aiohttp.ClientTimeout(total=None)
            engine.pace = gate = Gate(0)
            asking = asyncio.create_task(status_of(rig, stream=False))
            await at_gate(gate)
            rig.model.backends.update([])
            await asyncio.sleep(600)
            gate.advance(TOKENS)
            assert await asking == 200

    run_virtual(scenario())


def test_requests_that_no_worker_had_are_held_and_refused_as_before() -> None:
    """A worker that is registered and refuses connections has had none."""

    async def scenario() -> None:
        async with gateway_rig(0, held_max=2) as (rig, _):
            rig.model.backends.update([record("a", "http://127.0.0.1:1")])
            asking = [asyncio.create_task(rig.post(COMPLETIONS, WHOLE)) for _ in range(5)]
            await until(lambda: sum(one.done() for one in asking) == 3, "three are refused")
            assert rig.frontend.queued == 2
            rig.model.backends.stop_holding(30.0)
            assert [(await one)[0] for one in asking] == [503] * 5

    asyncio.run(scenario())


@streamed_or_whole
def test_an_engine_that_froze_with_its_sidecar_is_left_a_minute_after_its_entry_expired(*, stream: bool) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with gateway_rig(2) as (rig, [frozen, other]):
            rig.session._timeout = aiohttp.ClientTimeout(total=None)
            frozen.pace = gate = Gate(0)
            asking = asyncio.create_task(status_of(rig, stream=stream))
            await at_gate(gate)
            await asyncio.sleep(1_000)
            rig.model.backends.update([record("w1", other.address)])
            began_s = loop.time()
            assert await asking == 200
            assert loop.time() - began_s == pytest.approx(61, abs=2)

    run_virtual(scenario())


def test_a_sidecar_that_registers_again_keeps_its_streams() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, [engine, other]):
            rig.session._timeout = aiohttp.ClientTimeout(total=None)
            engine.pace = gate = Gate(0)
            streaming = asyncio.create_task(rig.stream(**WHOLE))
            await at_gate(gate)
            for _ in range(3):
                rig.model.backends.update([record("w1", other.address)])
                await asyncio.sleep(50)
                rig.register([engine, other])
                await asyncio.sleep(50)
            gate.advance()
            assert (await streaming).complete
            assert other.bodies == []

    run_virtual(scenario())


def test_workers_that_could_not_be_reached_are_tried_last_and_not_after_the_time() -> None:
    async def scenario() -> None:
        async with gateway_rig(0, hold_s=30) as (rig, _):
            rig.model.backends.update([record(name, f"http://127.0.0.1:{port}") for port, name in enumerate("abc", 1)])
            attempts = Attempts(rig.model, time.monotonic(), 100)
            for _ in range(2):
                attempts.unreachable(await attempts.next_backend(), OSError("cut off"))
            for one in rig.model.backends.ready:
                one.unreachable_until_s = 0.0  # it takes 3 s to find out that one is cut off
            last = await attempts.next_backend()
            assert last.record.worker == "c"
            attempts.unreachable(last, OSError("cut off"))
            for one in rig.model.backends.ready:
                one.unreachable_until_s = 0.0
            assert (await attempts.next_backend()).record.worker == "a"
            attempts._deadline_s = time.monotonic()
            with pytest.raises(ApiError, match="became ready in time"):
                await attempts.next_backend()

    asyncio.run(scenario())
