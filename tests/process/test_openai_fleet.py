"""Simulated engines with an OpenAI-compatible API as processes: start, and the end of their streams on SIGTERM."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from loadline.demo import defaults
from loadline.rig.server_processes import free_port
from tests.waiting import until_async

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
BODY = {"model": defaults.MODEL, "prompt": "abc", "max_tokens": 1, "stream": True, "return_token_ids": True}


@contextmanager
def process(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process and the first URL that it prints."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert child.stdout is not None
        yield child, child.stdout.readline().split()[-1]
    finally:
        child.terminate()
        child.communicate(timeout=20.0)


async def shut_down_during_a_stream(child: subprocess.Popen[str], url: str, length: int) -> tuple[int, int]:
    """Return the tokens of a stream that runs while the engine receives SIGTERM, and the answer to a later request."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/completions", json=BODY | {"max_tokens": length}) as response,
    ):
        tokens = refused = 0
        try:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    tokens += len(json.loads(line[6:])["choices"][0]["token_ids"])
                if tokens >= 20 and not refused:
                    child.send_signal(signal.SIGTERM)
                    refused = await status(session, url)
        except aiohttp.ClientPayloadError:
            pass
        return tokens, refused


async def status(session: aiohttp.ClientSession, url: str) -> int:
    """Return the status of new requests once it is not 200; 0 when no connection is made."""
    found = 200

    async def refuses() -> bool:
        nonlocal found
        try:
            async with session.post(f"{url}/v1/completions", json=BODY) as response:
                found = response.status
        except aiohttp.ClientError:
            found = 0
        return found != 200

    await until_async(refuses)
    return found


@pytest.mark.parametrize(("timeout_s", "length", "refused"), [("0", 4_000, (0, 500)), ("30", 600, (500,))])
def test_sigterm_cuts_streams_unless_they_get_time(timeout_s: str, length: int, refused: tuple[int, ...]) -> None:
    command = ("-m", "loadline.demo.openai.server", "--port", "0", "--speed", "5", "--shutdown-timeout", timeout_s)
    with process(*command) as (child, url):
        streamed, answered = asyncio.run(shut_down_during_a_stream(child, url, length))
        assert answered in refused
        assert (streamed == length) == (timeout_s == "30")
        assert child.wait(20.0) == 0


def test_the_fleet_tool_starts_engines_and_ends_them() -> None:
    command = ("tools/fleet.py", "--openai", "--workers", "1", "--port", str(free_port()), "--kv-blocks", "200")
    with process(*command) as (child, url):

        async def healthy() -> bool:
            async with aiohttp.ClientSession() as session:
                try:
                    async with session.get(f"{url}/health") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

        asyncio.run(until_async(healthy))
        child.terminate()
        assert child.wait(20.0) == 0
        assert not asyncio.run(healthy())
