"""The gateway against engines in process, over real connections."""

import asyncio
import io
import json
from typing import Any

import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from tests.support.fake_engine import greedy
from tests.support.gateway_rig import MODEL, gateway_rig, record
from tests.waiting import until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_is_the_engines_without_what_the_gateway_added(path: str) -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            prompt: dict[str, Any] = {"messages": chat("abc")} if path == CHAT else {"prompt": "abc"}
            got = await rig.stream(path, **prompt, max_tokens=40, ignore_eos=True)
            assert got.text == greedy("abc", 40, ignore_eos=True)[0]
            assert got.complete
            assert got.finish == "length"
            assert got.usage is None
            assert not [one for one in got.chunks if "prompt_token_ids" in one or not one["choices"]]
            assert not [one for one in got.choices if "token_ids" in one or "prompt_token_ids" in one]
            assert got.headers["x-engine"] == engine.address
            assert engine.bodies[0]["return_token_ids"]

    asyncio.run(scenario())


def test_a_client_gets_the_token_ids_and_usage_that_it_asks_for() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, _):
            got = await rig.stream(
                prompt="abc",
                max_tokens=30,
                ignore_eos=True,
                return_token_ids=True,
                stream_options={"include_usage": True},
            )
            text, tokens = greedy("abc", 30, ignore_eos=True)
            assert got.text == text
            assert [one for choice in got.choices for one in choice.get("token_ids", [])] == tokens
            assert got.choices[0]["prompt_token_ids"] == list(b"abc")
            assert got.usage == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_answer_that_is_not_streamed_passes_unchanged(path: str) -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            prompt: dict[str, Any] = {"messages": chat("abc")} if path == CHAT else {"prompt": "abc"}
            status, answer = await rig.post(path, {"model": MODEL, **prompt, "max_tokens": 20, "ignore_eos": True})
            assert status == 200
            assert answer["usage"]["completion_tokens"] == 20
            assert engine.bodies == [{"model": MODEL, **prompt, "max_tokens": 20, "ignore_eos": True}]

    asyncio.run(scenario())


def test_requests_go_to_the_worker_with_the_fewest() -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()

        async def wait(_sent: int) -> None:
            await go_on.wait()

        async with gateway_rig(3) as (rig, engines):
            for engine in engines:
                engine.pace = wait
            streams = [asyncio.create_task(rig.stream(prompt=f"p{number}")) for number in range(9)]
            await until(lambda: sum(engine.open for engine in engines) == 9, "all streams run")
            assert [engine.open for engine in engines] == [3, 3, 3]
            assert rig.frontend.in_flight == 9
            go_on.set()
            assert all(one.complete for one in await asyncio.gather(*streams))
            assert rig.frontend.in_flight == 0

    asyncio.run(scenario())


def test_only_ready_aggregated_workers_with_an_address_get_requests() -> None:
    async def scenario() -> None:
        async with gateway_rig(4, hold_s=0.2) as (rig, engines):
            rig.model.backends.update(
                [
                    record("w0", engines[0].address, state="starting"),
                    record("w1", engines[1].address, state="draining"),
                    record("w2", engines[2].address, role="decode"),
                    record("w3", ""),
                ]
            )
            status, answer = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "abc"})
            assert status == 503
            assert answer["error"]["code"] == "no_worker"

    asyncio.run(scenario())


def test_requests_wait_for_the_first_worker() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, engines):
            rig.register([])
            streams = [asyncio.create_task(rig.stream(prompt="abc")) for _ in range(5)]
            await until(lambda: rig.frontend.queued == 5, "all wait")
            [(_, reported)] = rig.bus.published
            assert b'"queued":1' in reported, "an agent need not wait for the next report"
            rig.register(engines)
            assert all(one.complete for one in await asyncio.gather(*streams))
            assert rig.frontend.queued == 0

    asyncio.run(scenario())


def test_no_more_requests_wait_than_allowed() -> None:
    async def scenario() -> None:
        async with gateway_rig(held_max=2) as (rig, engines):
            rig.register([])
            waiting = [asyncio.create_task(rig.stream(prompt="abc")) for _ in range(2)]
            await until(lambda: rig.frontend.queued == 2, "both wait")
            async with rig.session.post(rig.url + COMPLETIONS, json={"model": MODEL, "prompt": "a"}) as refused:
                assert refused.status == 503
                assert int(refused.headers["retry-after"]) > 0
                assert (await refused.json())["error"]["type"] == "overloaded_error"
            rig.register(engines)
            assert all(one.complete for one in await asyncio.gather(*waiting))

    asyncio.run(scenario())


def test_no_more_bytes_wait_than_allowed() -> None:
    async def scenario() -> None:
        async with gateway_rig(held_bytes_max=1_400) as (rig, engines):
            for _ in range(2):  # bytes that waited are counted no more
                rig.register([])
                waiting = [asyncio.create_task(rig.stream(prompt="a" * 500, max_tokens=2)) for _ in range(2)]
                await until(lambda: rig.frontend.queued == 2, "both wait")
                status, answer = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "a" * 500})
                assert (status, answer["error"]["type"]) == (503, "overloaded_error")
                waiting.append(asyncio.create_task(rig.stream(prompt="a")))
                await until(lambda: rig.frontend.queued == 3, "a small one waits, too")
                rig.register(engines)
                assert all(one.complete for one in await asyncio.gather(*waiting))

    asyncio.run(scenario())


def test_requests_that_wait_are_refused_when_the_gateway_ends() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, engines):
            rig.register([])
            waiting = asyncio.create_task(rig.post(COMPLETIONS, {"model": MODEL, "prompt": "abc"}))
            await until(lambda: rig.frontend.queued == 1, "it waits")
            rig.model.backends.stop_holding()
            for status, answer in (await waiting, await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "abc"})):
                assert (status, answer["error"]["message"]) == (503, "the gateway ends")
            rig.register(engines)
            assert (await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "abc"}))[0] == 200, "others end as usual"

    asyncio.run(scenario())


def test_a_client_that_leaves_while_it_waits_is_no_longer_queued() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, _):
            rig.register([])
            waiting = asyncio.create_task(rig.stream(prompt="abc"))
            await until(lambda: rig.frontend.queued == 1, "it waits")
            waiting.cancel()
            await until(lambda: rig.frontend.queued == 0, "it left")

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failed_answer_is_asked_for_again_elsewhere(status: int, *, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].statuses = [status]
            body = {"model": MODEL, "prompt": "abc", "stream": stream}
            async with rig.session.post(rig.url + COMPLETIONS, json=body) as answer:
                assert answer.status == 200
            assert [len(engine.bodies) for engine in engines] == [1, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_of_every_engine_reaches_the_client_after_three(*, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig(4) as (rig, engines):
            for engine in engines:
                engine.statuses = [500] * 9
            status, answer = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "abc", "stream": stream})
            assert (status, answer["error"]["message"]) == (500, "status 500")
            assert sum(len(engine.bodies) for engine in engines) == 3

    asyncio.run(scenario())


def test_an_error_of_the_request_is_not_repeated() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].statuses = [400]
            status, _ = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "abc", "stream": True})
            assert status == 400
            assert [len(engine.bodies) for engine in engines] == [1, 0]

    asyncio.run(scenario())


def test_a_worker_that_refuses_connections_gets_no_requests_for_a_while() -> None:
    async def scenario() -> None:
        async with gateway_rig(1) as (rig, [engine]):
            rig.model.backends.update([record("dead", "http://127.0.0.1:1"), record("w", engine.address)])
            for _ in range(4):
                assert (await rig.stream(prompt="abc")).complete
            dead = rig.model.backends.find("dead", 1)
            assert dead is not None
            assert dead.unreachable_until_s > 0

    asyncio.run(scenario())


def test_an_answer_that_breaks_before_its_first_token_begins_anew() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].die_after = 0
            for path, prompt in ((COMPLETIONS, {"prompt": "abc"}), (CHAT, {"messages": chat("abc"), "tools": [{}]})):
                got = await rig.stream(path, **prompt, max_tokens=20, ignore_eos=True)
                assert got.text == greedy("abc", 20, ignore_eos=True)[0]
                assert sum("role" in one.get("delta", {}) for one in got.choices) == (path == CHAT)

    asyncio.run(scenario())


def test_a_client_that_leaves_ends_the_request_at_the_engine() -> None:
    async def scenario() -> None:
        async def forever(sent: int) -> None:
            if sent >= 5:
                await asyncio.Event().wait()

        async with gateway_rig() as (rig, [engine]):
            engine.pace = forever
            body = {"model": MODEL, "prompt": "abc", "stream": True, "max_tokens": 400, "ignore_eos": True}
            async with rig.session.post(rig.url + COMPLETIONS, json=body) as answer:
                await answer.content.readline()
                assert engine.open == 1
            await until(lambda: engine.open == 0, "the engine is free")
            await until(lambda: rig.frontend.in_flight == 0, "it is counted")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        (b"", 400, "JSON"),
        (b"[]", 400, "object"),
        (b"\xff\xfe", 400, "JSON"),
        (b"[" * 100_000, 400, "nested"),
        (b'{"prompt": "a"}', 400, "`model`"),
        (b'{"model": 7, "prompt": "a"}', 400, "`model`"),
        (b'{"model": "other", "prompt": "a"}', 404, "'other'"),
        (b'{"model": "tiny"}', 400, "`prompt`"),
        (b'{"model": "tiny", "prompt": "a", "stream": "yes"}', 400, "`stream`"),
        (b'{"model": "tiny", "prompt": "a", "stream_options": []}', 400, "`stream_options`"),
        (b'{"model": "tiny", "prompt": "' + b"a" * 1_000_000 + b'"}', 413, "1000000 bytes"),
    ],
)
def test_a_bad_request_is_refused_by_name(body: bytes, status: int, names: str) -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            got, answer = await rig.post(COMPLETIONS, body)
            assert got == status
            assert names in answer["error"]["message"]
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert engine.bodies == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/v1/embeddings", 404), ("GET", COMPLETIONS, 405)])
def test_other_paths_are_refused_in_the_same_shape(method: str, path: str, status: int) -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, _), rig.session.request(method, rig.url + path) as answer:
            assert answer.status == status
            assert path in (await answer.json())["error"]["message"]

    asyncio.run(scenario())


def test_headers_pass_except_those_of_the_connection() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            sent = {"authorization": "Bearer k", "x-request-id": "7", "connection": "x-hop", "x-hop": "1", "te": "gzip"}
            body = {"model": MODEL, "prompt": "abc", "stream": False}
            async with rig.session.post(rig.url + COMPLETIONS, json=body, headers=sent) as answer:
                assert answer.status == 200
            got = {name.lower(): value for name, value in engine.headers[0].items()}
            assert (got["authorization"], got["x-request-id"]) == ("Bearer k", "7")
            assert not {"x-hop", "te"} & got.keys()
            assert got["accept-encoding"] == "identity"

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_a_body_of_two_megabytes_is_sent_with_its_length(*, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig(body_bytes_max=3_000_000) as (rig, [engine]):
            body = {"model": MODEL, "prompt": "a", "metadata": "x" * 2_000_000, "stream": stream}
            sent = io.BytesIO(json.dumps(body).encode())
            async with rig.session.post(rig.url + COMPLETIONS, data=sent) as answer:
                assert answer.status == 200
            assert len(engine.bodies[0]["metadata"]) == 2_000_000
            assert int(engine.headers[0]["Content-Length"]) > 2_000_000

    asyncio.run(scenario())


def test_models_health_and_metrics_are_served() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, _):
            assert (await rig.stream(prompt="abc")).complete
            async with rig.session.get(rig.url + "/v1/models") as answer:
                assert [one["id"] for one in (await answer.json())["data"]] == [MODEL]
            async with rig.session.get(rig.url + "/healthz") as answer:
                assert answer.status == 200
            async with rig.session.get(rig.url + "/metrics") as answer:
                text = await answer.text()
            assert 'loadline_gateway_requests_total{model="tiny",status="200"} 1.0' in text
            assert 'loadline_gateway_workers{model="tiny"} 1.0' in text

    asyncio.run(scenario())


def test_traffic_is_reported_with_lengths_latencies_and_attainment() -> None:
    async def scenario() -> None:
        async with gateway_rig(objectives=ObjectiveKnobs(60_000, 60_000)) as (rig, _):
            for stream in (True, False):
                body = {"model": MODEL, "prompt": "x" * 40, "stream": stream, "max_tokens": 20, "ignore_eos": True}
                async with rig.session.post(rig.url + COMPLETIONS, json=body) as answer:
                    await answer.read()
            sample = rig.frontend._interval.sample(1, 1_000, queued=0, in_flight=0)
            assert (sample.arrivals, sample.completed) == (2, 2)
            assert sample.osl_tokens == 20
            assert sample.isl_tokens is not None
            assert 10 <= sample.isl_tokens <= 40
            assert sample.ttft_ms is not None
            assert sample.itl_ms is not None
            assert (sample.ttft_met, sample.itl_met, sample.both_met) == (2, 2, 2)

    asyncio.run(scenario())


def test_an_engine_that_refuses_token_ids_in_chat_streams_is_asked_without() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            engine.refuses_chat_ids = True
            for _ in range(2):
                got = await rig.stream(CHAT, messages=chat("abc"), max_tokens=20, ignore_eos=True)
                assert got.text == greedy("abc", 20, ignore_eos=True)[0]
            assert [bool(body.get("return_token_ids")) for body in engine.bodies] == [True, False, False]

    asyncio.run(scenario())
