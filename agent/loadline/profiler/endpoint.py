"""Client of one engine with an OpenAI-compatible API."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.http_exceptions import LineTooLong
from msgspec import Struct

from loadline.adapters.http_body import BodyTooLarge, read_body
from loadline.profiler.problems import ContextTooLong, EngineProblem, EngineUnavailable, RequestRefused
from loadline.profiler.prompts import Prompt
from loadline.profiler.stream import StreamTiming, read_stream

TIMEOUTS: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=120.0)
"""Bounds of waiting: a prompt of 100,000 tokens takes a small engine a minute."""
LINE_BYTES_MAX: Final = 2**20
_PAGE_BYTES_MAX: Final = 4 * 2**20
_SHOWN_MAX: Final = 200
_CONTEXT: Final = re.compile(
    r"(?:(?:context|model)\D{0,40}length\D{0,20}|maximum of (?=[\d,]+ tokens)"  # vLLM, SGLang
    r"|max_num_tokens \("  # TensorRT-LLM
    r"|context size \("  # llama.cpp
    r"|tokens \+ `?max_new_tokens`? must be <= |inputs`? must have less than (?=[\d,]+ tokens)"  # TGI
    r")(\d[\d,]{0,11})",
    re.IGNORECASE,
)
"""A limit of the context in the refusal of an engine."""
_REFUSED: Final = (400, 405, 413, 422, 501)


class Dialect(Struct, frozen=True):
    """Form of the requests that an engine accepts."""

    chat: bool = False
    ignore_eos: bool = True


class ModelCard(Struct):
    """Entry of ``/v1/models``."""

    id: str
    max_model_len: int | None = None


class _ModelCards(Struct):
    data: list[ModelCard]


class EngineEndpoint:
    """An engine.

    Args:
        session: HTTP session.
        name: Name in messages.
        url: Base URL, with or without ``/v1``.
        api_key: Bearer token; empty: none.
    """

    def __init__(self, session: aiohttp.ClientSession, name: str, url: str, api_key: str = "") -> None:
        self.name = name
        self.dialect = Dialect()
        self._answered = False
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def card(self, model: str) -> ModelCard:
        """Return the entry of a model, or of the only one if ``model`` is empty.

        Raises:
            EngineProblem: There is no such model, or the engine cannot be asked.
        """
        try:
            async with self._request("GET", "/v1/models") as response:
                await self._check(response)
                cards = msgspec.json.decode(await read_body(response, _PAGE_BYTES_MAX), type=_ModelCards).data
        except RequestRefused:
            if model:
                return ModelCard(model)  # some gateways list no models
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineProblem(
                f"{self.name}: {self._url}/v1/models lists no models. Give the engine's base URL."
            ) from error
        names = [card.id for card in cards]
        if model in names or (not model and len(names) == 1):
            return cards[names.index(model) if model else 0]
        problem = f"does not serve {model!r}" if model else "serves several models or none"
        raise EngineProblem(f"{self.name}: {problem}. Give --model one of: {', '.join(names)[:_SHOWN_MAX]}.")

    async def generate(
        self, model: str, prompt: Prompt, tokens: int, on_first: Callable[[], None] = lambda: None
    ) -> StreamTiming:
        """Stream ``tokens`` of output after a prompt; call ``on_first`` at the first one.

        Raises:
            EngineProblem: The engine does not do so.
        """
        body: dict[str, Any] = {"model": model, "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.dialect.chat:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
        else:
            path, body["prompt"] = "/v1/completions", prompt
        if self.dialect.ignore_eos:
            body["ignore_eos"] = True
        sent_s = asyncio.get_running_loop().time()
        try:
            async with self._request("POST", path, body) as response:
                await self._check(response)
                timing = await read_stream(response, self.name, sent_s, on_first)
        except (ValueError, LineTooLong) as error:  # by version of aiohttp
            raise EngineProblem(
                f"{self.name}: a line of a stream is over {2 * LINE_BYTES_MAX} bytes. See the engine's log."
            ) from error
        self._answered = True
        return timing

    async def metrics(self) -> bytes | None:
        """Return the page of metrics; None: there is none."""
        try:
            async with self._request("GET", "/metrics") as response:
                return await read_body(response, _PAGE_BYTES_MAX) if response.status == 200 else None  # noqa: PLR2004 - HTTP
        except EngineProblem:
            return None

    @asynccontextmanager
    async def _request(self, method: str, path: str, body: Any = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the answer, with the errors of both mapped."""
        data = None if body is None else msgspec.json.encode(body)
        headers = self._headers | ({} if body is None else {"content-type": "application/json"})
        try:
            async with await self._answer(method, path, data, headers) as response:
                yield response
        except BodyTooLarge as error:
            raise EngineProblem(f"{self.name}: {path} answers {error}. Give the engine's base URL.") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = (str(error) or type(error).__name__)[:_SHOWN_MAX].rstrip(".")
            raise EngineUnavailable(
                f"{self.name}: {self._url} does not answer: {said}. Is the engine ready?"
            ) from error

    async def _answer(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        try:
            # A redirect could pass the key to another host.
            return await self._session.request(
                method, self._url + path, data=data, headers=headers, allow_redirects=False
            )
        except ValueError as error:  # also that of a host that no name server can be asked for
            remedy = "Give one such as http://10.0.0.7:8000"
            raise EngineProblem(f"{self.name}: {self._url} is not a URL. {remedy}.") from error

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise the error of an answer that is none of success."""
        status = response.status
        if status == 200:  # noqa: PLR2004 - HTTP
            return
        text = (await read_body(response, _PAGE_BYTES_MAX)).decode(errors="replace")
        said = f"{status}, {_message(text)}"
        if 300 <= status < 400:  # noqa: PLR2004 - HTTP
            raise EngineProblem(f"{self.name}: is redirected to {response.headers.get('location')}. Give that URL.")
        if status in (401, 403):
            raise EngineProblem(f"{self.name}: refuses the key: {said}. Give --api-key-file.")
        if status in _REFUSED and (found := _CONTEXT.search(text)):
            context_max = int(found[1].replace(",", ""))
            raise ContextTooLong(f"{self.name}: a prompt is too long: {said}. Give --max-context.", context_max)
        if status in _REFUSED and "too long" in text:
            raise ContextTooLong(f"{self.name}: a prompt is too long: {said}. Give --max-context.", None)
        if status == 404 and "model" in text and "exist" in text:  # noqa: PLR2004 - HTTP
            raise EngineProblem(f"{self.name}: does not serve this model: {said}. Give --model another one.")
        if status in _REFUSED or status == 404:  # noqa: PLR2004 - HTTP
            shorter, api = "Give --max-context, if a prompt is too long", "Give the URL of an OpenAI-compatible API"
            remedy = shorter if self._answered else api
            raise RequestRefused(f"{self.name}: refuses a request: {said}. {remedy}.")
        raise EngineUnavailable(f"{self.name}: {self._url} answers {said}. See the engine's log.")


def _message(text: str) -> str:
    """Return the message of an error in JSON, or the text."""
    try:
        found = msgspec.json.decode(text)
        error = found.get("error", found) if isinstance(found, dict) else found
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (msgspec.MsgspecError, RecursionError):
        pass
    return " ".join(text.split())[:_SHOWN_MAX].rstrip(".")
