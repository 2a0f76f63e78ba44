"""Simulated engines behind an OpenAI-compatible API, over sockets and in virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.openai_engines import KNOBS, MODEL, TIMING, openai_engine
from tests.support.virtual_time import run_virtual

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0-metrics.txt"
PROMPT = list(range(100))


class Client:
    """A client of one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def post(self, path: str = "/v1/completions", **body: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json={"model": MODEL} | body) as response:
            return response.status, await response.json()

    async def stream(self, path: str = "/v1/completions", **body: Any) -> list[tuple[float, dict[str, Any]]]:
        """Return the chunks of a stream, each with its time in ms since the request."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with self.session.post(self.url + path, json={"model": MODEL, "stream": True} | body) as response:
            return [
                ((clock() - began_s) * 1_000.0, json.loads(line[6:]))
                async for line in response.content
                if line.startswith(b"data: {")
            ]

    async def metric(self, name: str) -> float:
        async with self.session.get(self.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        name, _, label = name.partition(":")
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}{{") and label in line
        )


def with_engine(scenario: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with openai_engine(**options) as url, aiohttp.ClientSession() as session:
            await scenario(Client(session, url))

    run_virtual(main())


def token_ids(chunks: list[tuple[float, dict[str, Any]]]) -> list[int]:
    return [token for _, chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]]


def test_the_metrics_have_the_names_and_types_of_a_recorded_vllm() -> None:
    async def scenario(client: Client) -> None:
        async with client.session.get(client.url + "/metrics") as response:
            text = await response.text()
        families = [line.removeprefix("# TYPE ") for line in text.splitlines() if line.startswith("# TYPE ")]
        assert sorted(families) == sorted(RECORDED.read_text().splitlines())

    with_engine(scenario)


def test_tokens_come_at_the_times_of_the_profile() -> None:
    async def scenario(client: Client) -> None:
        chunks = await client.stream(prompt=PROMPT, max_tokens=20)
        times_ms = [at_ms for at_ms, _ in chunks]
        assert len(times_ms) == 20
        assert times_ms[0] == pytest.approx(TIMING.prefill_ms(len(PROMPT)), abs=1.1)  # timers have steps of 1 ms
        assert (times_ms[-1] - times_ms[0]) / 19 == pytest.approx(TIMING.itl_ms(1, 0), abs=0.1)
        assert await client.metric("time_to_first_token_seconds_sum") == pytest.approx(0.015)
        assert await client.metric("inter_token_latency_seconds_sum") == pytest.approx(19 * 0.00825)

    with_engine(scenario)


def test_a_resumed_stream_equals_an_unbroken_one() -> None:
    async def scenario(client: Client) -> None:
        whole = await client.stream(prompt="How are you?", max_tokens=60, return_token_ids=True)
        prompt = whole[0][1]["choices"][0]["prompt_token_ids"]
        assert prompt == list(b"How are you?")
        first = await client.stream(prompt=prompt, max_tokens=25, return_token_ids=True)
        rest = await client.stream(prompt=prompt + token_ids(first), max_tokens=35, return_token_ids=True)
        assert token_ids(first) + token_ids(rest) == token_ids(whole)
        by_text = await client.post(prompt="How are you?", max_tokens=60)
        assert by_text[1]["choices"][0]["text"].encode() == bytes(token_ids(whole))

    with_engine(scenario)


def test_chats_and_completions_agree_on_text_usage_and_reason() -> None:
    async def scenario(client: Client) -> None:
        chat = "/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7}
        _, whole = await client.post(chat, **body)
        chunks = [one for _, one in await client.stream(chat, **body, stream_options={"include_usage": True})]
        text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])
        assert text == whole["choices"][0]["message"]["content"]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == "length"
        assert chunks[-1]["usage"] == whole["usage"] == {"prompt_tokens": 2, "completion_tokens": 7, "total_tokens": 9}

    with_engine(scenario)


def test_ignore_eos_is_what_makes_outputs_as_long_as_asked() -> None:
    async def scenario(client: Client) -> None:
        _, short = await client.post(prompt=PROMPT, max_tokens=1_000)
        assert short["choices"][0]["finish_reason"] == "stop"
        assert short["usage"]["completion_tokens"] < 1_000
        _, whole = await client.post(prompt=PROMPT, max_tokens=1_000, ignore_eos=True)
        assert whole["usage"]["completion_tokens"] == 1_000

    with_engine(scenario, mean_osl=20)


def test_a_prompt_in_the_prefix_cache_needs_no_prefill() -> None:
    async def scenario(client: Client) -> None:
        prompt = [7] * 1_600
        for _ in range(2):
            await client.post(prompt=prompt, max_tokens=1)
        assert await client.metric("prefix_cache_hits_total") == 1_599
        assert await client.metric("time_to_first_token_seconds_sum") == pytest.approx(
            (TIMING.prefill_ms(1_600) + TIMING.prefill_ms(1)) / 1_000
        )

    with_engine(scenario)


def test_a_client_that_leaves_aborts_its_request() -> None:
    async def scenario(client: Client) -> None:
        for stream in (True, False):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.post(prompt=PROMPT, max_tokens=3_000, stream=stream), 0.2)
        await asyncio.sleep(0.1)
        assert await client.metric("num_requests_running") == 0
        assert await client.metric("request_success_total:abort") == 2
        assert await client.metric("request_success_total:length") == 0

    with_engine(scenario)


def test_requests_wait_for_a_free_slot() -> None:
    async def scenario(client: Client) -> None:
        posts = [
            asyncio.create_task(client.post(prompt=[one], max_tokens=50)) for one in range(KNOBS.max_batch_requests + 4)
        ]
        await asyncio.sleep(0.1)
        assert await client.metric("num_requests_waiting") == 4
        await asyncio.gather(*posts)
        assert await client.metric("request_queue_time_seconds_sum") > 4 * 50 * 0.008

    with_engine(scenario)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": PROMPT, "max_tokens": 4_000}, 400),
        ({"prompt": []}, 400),
        ({"prompt": [256]}, 400),
        ({"prompt": "x", "max_tokens": 0}, 400),
        ({"prompt": "x", "model": "other"}, 404),
    ],
)
def test_an_impossible_request_is_refused(body: dict[str, Any], status: int) -> None:
    async def scenario(client: Client) -> None:
        answered, error = await client.post(**body)
        assert (answered, error["error"]["code"]) == (status, status)

    with_engine(scenario)
