"""Answers with which profiling cannot go on: named with a remedy, retried only where that helps."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadline.profiler.problems import EngineProblem, EngineUnavailable
from tests.support.openai_engines import KNOBS, openai_engine
from tests.support.profiling import GRID, TOKEN, Handler, profiled, sse, stub, virtual_ms
from tests.support.virtual_time import run_virtual


def error(status: int, message: str) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": message, "code": status}}, status=status)

    return answer


def stream(data: bytes, content_type: str = "text/event-stream") -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": content_type})
        await response.prepare(request)
        for line in data.splitlines(keepends=True):
            await asyncio.sleep(0.001)
            await response.write(line)
        return response

    return answer


async def redirect(_request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"location": "http://127.0.0.1:9/"})


async def collected(request: web.Request) -> web.StreamResponse:
    """Answer as a proxy does that collects a stream."""
    await asyncio.sleep(1.0)
    tokens = json.loads(await request.read())["max_tokens"]
    return web.Response(body=sse(*[TOKEN] * tokens, "[DONE]"), headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (error(401, "Unauthorized"), ["refuses the key", "401", "--api-key-file"]),
        (error(404, "The model `tiny` does not exist."), ["does not serve this model", "--model"]),
        (error(400, "no such thing"), ["refuses a request", "no such thing"]),
        (redirect, ["redirected to http://127.0.0.1:9/"]),
        (error(400, "x" * 2**23), ["/v1/completions answers more than 4,194,304 bytes"]),
        (stream(b'{"choices": []}', "application/json"), ["instead of a stream"]),
        (collected, ["at once", "proxy"]),
        (stream(sse(*[TOKEN] * 16, "[DONE]")), ["no usage of streams"]),  # two tokens in a chunk
        (stream(b"<html>hello</html>\n", "text/event-stream"), ["no completion", "<html>"]),
        (stream(sse("{broken")), ["no completion", "{broken"]),
        (stream(sse("[1, 2]")), ["no completion"]),
        (stream(sse('{"other": 1}')), ["no completion"]),
        (stream(sse(b"\xff\xfe")), ["no completion"]),
        (stream(sse("[DONE]")), ["without a token"]),
        (stream(sse(TOKEN.replace("a", "a" * 2**21))), ["line of a stream"]),
    ],
)
def test_an_answer_that_no_retry_improves_is_named_at_once(handler: Handler, words: list[str], tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(handler) as url:
            began_ms = virtual_ms()
            with pytest.raises(EngineProblem) as caught:
                await profiled(url, tmp_path)
            assert not isinstance(caught.value, EngineUnavailable)
            assert [word for word in words if word not in str(caught.value)] == []
            assert virtual_ms() - began_ms < 5_000

    run_virtual(main())


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"data": []}, ["several models or none"]),
        ({"data": [{"id": "a"}, {"id": "b"}]}, ["--model one of: a, b"]),
        ({"things": 1}, ["lists no models"]),
        ([], ["lists no models"]),
    ],
)
def test_a_model_that_is_not_clear_is_asked_for(models: Any, words: list[str], tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(error(500, "never asked"), models) as url:
            with pytest.raises(EngineProblem) as caught:
                await profiled(url, tmp_path)
            assert [word for word in words if word not in str(caught.value)] == []

    run_virtual(main())


def test_an_engine_without_metrics_needs_the_size_of_its_cache(tmp_path: Path) -> None:
    tokens = sse(*[TOKEN] * 32, "[DONE]")

    async def main() -> None:
        async with stub(stream(tokens), metrics="other 1\n") as url:
            with pytest.raises(EngineProblem, match="--kv-tokens"):
                await profiled(url, tmp_path)

    run_virtual(main())


def test_an_engine_that_is_away_is_unavailable(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(EngineUnavailable, match="does not answer"):
            await profiled("http://127.0.0.1:9", tmp_path)
        with pytest.raises(EngineProblem, match="not a URL"):
            await profiled("http://", tmp_path)

    run_virtual(main())


@pytest.mark.parametrize("host", ["gpu..host", "g" * 64])
def test_a_host_that_has_no_address_is_no_url(host: str, tmp_path: Path) -> None:
    with pytest.raises(EngineProblem, match="not a URL"):
        asyncio.run(profiled(f"http://{host}:8000", tmp_path))


class SlowEnd:
    """A stub whose answers end some time after their last event."""

    def __init__(self, wait_s: float, *, breaks: bool = False) -> None:
        self.peers: set[object] = set()
        self._wait_s = wait_s
        self._breaks = breaks

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        body = json.loads(await request.read())
        response = await stream(sse(*[TOKEN] * body["max_tokens"], "[DONE]"))(request)
        await asyncio.sleep(self._wait_s)
        if self._breaks:
            request.transport.abort()
        return response


def test_an_answer_that_stays_open_after_its_last_event_is_not_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(SlowEnd(wait_s=60.0).answer) as url:
            began_ms = virtual_ms()
            _, complete = await profiled(url, tmp_path, batch_max=2)
            assert complete
            assert virtual_ms() - began_ms < 30_000

    run_virtual(main())


def test_an_answer_that_breaks_off_after_its_last_event_is_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(SlowEnd(wait_s=0.01, breaks=True).answer) as url:
            _, complete = await profiled(url, tmp_path, batch_max=1)
            assert complete

    run_virtual(main())


def test_an_answer_that_ends_soon_after_its_last_event_keeps_its_connection(tmp_path: Path) -> None:
    async def main() -> None:
        engine = SlowEnd(wait_s=0.01)
        async with stub(engine.answer) as url:
            run, _ = await profiled(url, tmp_path, batch_max=1)
        assert len(engine.peers) < run.record.count  # one connection a request would delay each first token

    run_virtual(main())


class Flaky:
    """A stub that breaks off some of the streams of a run, after the first ones."""

    def __init__(self, good: int, bad: int) -> None:
        self.asked = 0
        self._bad = range(good, good + bad)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        body = json.loads(await request.read())
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0.01)
            await response.write(sse(TOKEN))
            if self.asked in self._bad:
                assert request.transport is not None
                request.transport.close()
                return response
        await response.write(sse("[DONE]"))
        return response


def test_a_stream_that_breaks_off_is_measured_again(tmp_path: Path) -> None:
    async def main() -> None:
        flaky = Flaky(good=5, bad=2)
        async with stub(flaky.answer) as url:
            run, complete = await profiled(url, tmp_path, batch_max=2)
        assert complete
        assert flaky.asked > 7
        assert all(point.ttft_ms == pytest.approx(10.0, abs=1.1) for point in run.record.prefills.values())

    run_virtual(main())


def test_what_was_measured_is_kept_when_the_engine_dies(tmp_path: Path) -> None:
    async def main() -> None:
        flaky = Flaky(good=12, bad=10**6)
        async with stub(flaky.answer) as url:
            with pytest.raises(EngineUnavailable):
                await profiled(url, tmp_path, batch_max=2)
        kept = (tmp_path / "measurements.jsonl").read_text()
        assert 0 < kept.count('"kind":"prefill"') < GRID.prompts
        async with openai_engine(KNOBS) as url:
            _, complete = await profiled(url, tmp_path, batch_max=2)
        assert complete
        assert (tmp_path / "measurements.jsonl").read_text().startswith(kept)

    run_virtual(main())


def refusing(message: str) -> Handler:
    """Answer requests of over 1,000 tokens with an error."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if len(body["prompt"]) + body["max_tokens"] > 1_000:
            return await error(400, message)(request)
        return await stream(sse(*[TOKEN] * body["max_tokens"], "[DONE]"))(request)

    return answer


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 1000 tokens. However, ...",
        "This model's maximum context length is 1,000 tokens. However, ...",
        "The sum of prompt length (4088.0), query length (0) should not exceed max_num_tokens (1000)",
        "request (4089 tokens) exceeds the available context size (1000 tokens), try increasing it",
        "`inputs` tokens + `max_new_tokens` must be <= 1000. Given: 4088 `inputs` tokens and 1 `max_new_tokens`",
        "`inputs` must have less than 1000 tokens. Given: 4088",
    ],
)
def test_a_context_that_is_shorter_than_thought_bounds_the_sweeps(message: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(refusing(message)) as url:
            run, complete = await profiled(url, tmp_path, batch_max=2)
        assert complete
        assert run.record.limits is not None
        assert run.record.limits.context_found == 1_000
        assert max(task.isl_tokens for task in run.record.prefills) == pytest.approx(1_000, abs=20)

    run_virtual(main())


def test_a_refusal_after_shorter_prompts_asks_for_the_longest(tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(refusing("no room")) as url:
            with pytest.raises(EngineProblem, match=r"no room\. Give --max-context"):
                await profiled(url, tmp_path)

    run_virtual(main())


@pytest.mark.parametrize("tokens", [40, 0])
def test_a_context_that_turns_out_too_short_for_the_outputs_is_not_measured(tokens: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(refusing(f"This model's maximum context length is {tokens} tokens.")) as url:
            with pytest.raises(EngineProblem, match=f"a context of {tokens} tokens is too short for outputs of 32"):
                await profiled(url, tmp_path)
        assert f'"context_found":{tokens}' not in (tmp_path / "measurements.jsonl").read_text()

    run_virtual(main())


def test_a_model_that_ends_at_once_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        probes = 0

        async def ends(request: web.Request) -> web.StreamResponse:
            nonlocal probes
            probes += 1
            return await stream(sse(*[TOKEN] * (32 if probes < 3 else 1), "[DONE]"))(request)

        async with stub(ends) as url:
            with pytest.raises(EngineProblem, match="ignore_eos"):
                await profiled(url, tmp_path, batch_max=2)

    run_virtual(main())
