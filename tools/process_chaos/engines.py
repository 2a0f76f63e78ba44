"""A model of engines with an OpenAI-compatible API: real sidecars and a real gateway, and a client that reads answers.

The output of an engine depends on all tokens before it, so that an answer which several engines have continued is right
only if none of them has lost, repeated or invented a token.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from random import Random
from typing import Final

import aiohttp

from loadline.demo.openai.text import output_of, text_of, tokens_of

MODEL: Final = "served"
POOL: Final = "aggregated"
_STREAMS: Final = (2, 48)
"""Requests at a time; their number changes, so that engines come and go."""
_CHANGE_S: Final = 30.0
_TOKENS: Final = (20, 600)
_WHOLE: Final = 0.2
"""Fraction of the requests whose answer is not streamed."""
_BATCH: Final = 8
_STALL_S: Final = 2.0
"""Time after which the gateway gives up a silent engine: shorter than most times for which one is frozen."""
_POLL_S: Final = 0.1
_ANSWER_S: Final = 120.0
"""Time limit of one answer."""

AGENT_CONFIG: Final = f"""
[[models]]
name = "{MODEL}"
objectives = {{ ttft_ms = 1000, itl_ms = 100 }}

[models.migration]
enabled = true
policies = ["neutral_load", "neutral_failover"]
neutral_load_threshold = 0.9
load_balance_threshold = 0.2

[[models.pools]]
name = "{POOL}"
role = "aggregated"
replicas_min = 2
replicas_max = 4
start_deadline_ms = 30000
"""
"""The model in an agent's configuration, with the default planner."""

_ENGINE: Final = [
    *(sys.executable, "-m", "loadline.demo.openai.server", "--model", MODEL, "--port", "{port}"),
    *("--max-batch-requests", str(_BATCH), "--shutdown-timeout", "60"),
]
SCALER_CONFIG: Final = f"""
[[models]]
name = "{MODEL}"

[[models.pools]]
name = "{POOL}"
role = "aggregated"
sidecar = true
command = {json.dumps(_ENGINE)}
"""
"""The model in the scaler's configuration."""


def gateway_command(config: str, port: int) -> list[str]:
    """Return the command of the gateway, with a file that has servers and models."""
    options = ["--config", config, "--model", MODEL, "--listen", f"127.0.0.1:{port}", "--stall-s", f"{_STALL_S:g}"]
    return [sys.executable, "-m", "loadline", "gateway", *options]


class Client:
    """Client that asks the gateway all the time, and compares each answer with the one that is right.

    Args:
        url: Base URL of the gateway.
        rng: Draws the requests.
    """

    def __init__(self, url: str, rng: Random) -> None:
        self.answers = 0
        """Number of right answers."""
        self.problems: list[str] = []
        self._url = url
        self._rng = rng
        self._asked = 0

    async def ask_until(self, is_over: Callable[[], bool]) -> None:
        """Keep a changing number of requests open; return when the last one is answered after ``is_over``.

        It begins when the gateway accepts connections.
        """
        loop, open_requests = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        limit, changes_at_s = 0, loop.time()
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            while not is_over() and not await self._is_served(session):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(_POLL_S)
            while not (over := is_over()) or open_requests:
                if loop.time() >= changes_at_s:
                    limit, changes_at_s = self._rng.randint(*_STREAMS), loop.time() + _CHANGE_S
                while not over and len(open_requests) < limit:
                    open_requests.add(asyncio.create_task(self._ask(session)))
                done, open_requests = await asyncio.wait(
                    open_requests, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                for request in done:
                    request.result()

    async def _is_served(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self._url}/health"):
                return True
        except aiohttp.ClientError:
            return False

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        self._asked += 1
        prompt, tokens = f"request {self._asked}: ", self._rng.randint(*_TOKENS)
        streamed = self._rng.random() >= _WHOLE
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": streamed, "ignore_eos": True}
        try:
            async with session.post(f"{self._url}/v1/completions", json=body) as response:
                data = await response.read()
                text = "" if not response.ok else _streamed_text(data) if streamed else _whole_text(data)
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as error:
            self.problems.append(f"the gateway did not answer {prompt!r}: {error!r}")
            return
        expected = text_of(output_of(tokens_of(prompt), tokens, None)[0])
        if text == expected:
            self.answers += 1
        else:
            got = f"{response.status} with {len(text)} of {tokens} tokens, {data[-200:]!r}"
            self.problems.append(f"the answer to {prompt!r} (stream: {streamed}) is wrong: {got}")


def _streamed_text(data: bytes) -> str:
    """Return the text of a stream; raise a ``ValueError`` if it has no end."""
    events = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    if not events or events.pop() != "[DONE]":
        raise ValueError("the stream has no end")
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def _whole_text(data: bytes) -> str:
    text: str = json.loads(data)["choices"][0]["text"]
    return text
