"""Calls and streams to an etcd cluster: bounded in time and size, with failover, login and error mapping."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from loadline.adapters.client_tls import ClientTls
from loadline.adapters.etcd_gateway import EtcdGateway, check_endpoint
from loadline.adapters.http_body import BodyTooLarge, read_body
from loadline.errors import ConfigError, OutcomeUnknown, StoreDenied, StoreUnavailable
from loadline.servers import EtcdKnobs
from loadline.toml.secret_file import read_secret

# etcd's own limit of a request is 1.5 MiB, and 10 MiB at most is recommended: 14 MB in base64.
REPLY_BYTES_MAX = 16 * 2**20
_HTTP_ERROR = 400

# gRPC codes, as the gateway gives them. After the unclear ones a write may have happened.
_INVALID, _NOT_FOUND, _DENIED, _UNAUTHENTICATED = 3, 5, 7, 16
_UNCLEAR = frozenset({1, 2, 4, 10, 13, 14})
_TOKEN_ENDED = ("invalid auth token", "revision in header is old", "user name is empty")
_READ_NOTHING = msgspec.json.encode({"key": b"\0", "keys_only": True})

_Reply = TypeVar("_Reply", bound=Struct)


class ReplyTooLong(StoreUnavailable):
    """A reply above the limit; the rest of it was not read."""


class LeaseNotFound(StoreUnavailable):
    """A call for a lease that does not exist."""


class _Unsent(Exception):
    """A request that certainly did not reach the server."""


class _Unclear(Exception):
    """A request of which the answer does not show whether it was executed."""


class _ServerRefused(Exception):
    """A request that the server certainly did not execute."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.token_ended = code == _UNAUTHENTICATED or any(sign in text for sign in _TOKEN_ENDED)


class _Error(Struct):
    """Error of the gateway. etcd 3.6 removed ``error`` and older versions lack ``message``, which has priority."""

    code: int = 2
    message: str = ""
    error: str = ""


class _Token(Struct):
    token: str = ""


class _Request(Struct, frozen=True):
    """A call; see ``EtcdRpc.call``."""

    path: str
    data: bytes
    repeatable: bool = True
    endpoint: int | None = None
    bytes_max: int = REPLY_BYTES_MAX


class EtcdRpc:
    """Calls to one etcd cluster.

    Args:
        knobs: Endpoints and credentials.

    Raises:
        ConfigError: An endpoint is no URL or is plain http to another host, or a file cannot be used.
    """

    def __init__(self, knobs: EtcdKnobs) -> None:
        if bool(knobs.user) != bool(knobs.password_file):
            raise ConfigError("etcd.user", "user and password_file belong together", "Write both or neither.")
        for index, url in enumerate(knobs.endpoints):
            check_endpoint(f"etcd.endpoints[{index}]", url, insecure=knobs.insecure)
        self._knobs = knobs
        self._timeout_s = knobs.timeout_ms / 1000
        has_tls = any(url.startswith("https://") for url in knobs.endpoints)
        self._tls = ClientTls("etcd.", knobs.ca_file, knobs.cert_file, knobs.key_file) if has_tls else None
        self._gateways: dict[int, EtcdGateway] = {}
        self._preferred = 0
        self._token: str | None = None if knobs.user else ""
        self._unanswered: str | None = None
        """Token of the last call without an answer."""
        self._logging_in = asyncio.Lock()
        self.dates: dict[int, str] = {}
        """Date headers of the last answers, by endpoint."""

    @property
    def endpoint(self) -> int:
        """Index of the preferred endpoint: the last one that answered."""
        return self._preferred

    async def call(
        self,
        path: str,
        body: Any,
        reply: type[_Reply],
        *,
        repeatable: bool = True,
        endpoint: int | None = None,
        bytes_max: int = REPLY_BYTES_MAX,
    ) -> _Reply:
        """Call a method; ends within ``timeout_ms``, all endpoints and a new login included.

        Args:
            path: Path of the method, such as ``/kv/range``.
            body: Request; bytes become base64.
            reply: Type of the answer.
            repeatable: True for an idempotent call, which a lost answer retries at the next endpoint.
            endpoint: Use only this endpoint.
            bytes_max: Longest answer.

        Raises:
            ReplyTooLong: The call is repeatable and its answer is longer than ``bytes_max``.
            StoreUnavailable: Not reached or refused; a call that is not repeatable was certainly not executed.
            NotFound: Refused, as the lease does not exist.
            StoreDenied: The credentials, the permission or the request is not accepted.
            OutcomeUnknown: Not repeatable, and possibly executed.
        """
        deadline = time.monotonic() + self._timeout_s
        request = _Request(path, msgspec.json.encode(body), repeatable, endpoint, bytes_max)
        try:
            return _decode(await self._call_logged_in(request, deadline), reply)
        except ReplyTooLong as error:
            if repeatable:
                raise
            raise OutcomeUnknown(str(error)) from error
        except _ServerRefused as error:
            raise _refusal(path, error) from error
        except _Unsent as error:
            raise StoreUnavailable(f"etcd {path}: {error}") from error
        except _Unclear as error:
            kind = StoreUnavailable if repeatable else OutcomeUnknown
            raise kind(f"etcd {path}: {error}") from error

    async def stream(
        self,
        path: str,
        body: Any,
        *,
        endpoint: int,
        on_line: Callable[[bytes], bool],
        idle_s: float,
        on_idle: Callable[[], Awaitable[None]],
    ) -> None:
        """Stream an answer: pass every line to ``on_line`` until that returns False or the answer ends.

        Args:
            path: Path of the method, such as ``/watch``.
            body: Request.
            endpoint: Endpoint to call.
            on_line: Called with every line.
            idle_s: Time without data after which ``on_idle`` is called, repeatedly.
            on_idle: Raises to abandon the stream.

        Raises:
            StoreUnavailable: Not reached, or interrupted.
            StoreDenied: The credentials or the permission is not accepted.
        """
        try:
            token = await self._logged_in(time.monotonic() + self._timeout_s)
            async with asyncio.timeout(self._timeout_s) as start:
                forever = aiohttp.ClientTimeout(total=None)
                async with self._gateway(endpoint).post(path, msgspec.json.encode(body), token, forever) as response:
                    if response.status >= _HTTP_ERROR:
                        raise _error(response.status, await _read(response, REPLY_BYTES_MAX))
                    start.reschedule(None)
                    await _feed(response.content, on_line, idle_s, on_idle)
        except _ServerRefused as error:
            if error.token_ended:
                self._forget_token()
            raise _refusal(path, error) from error
        except (_Unsent, _Unclear, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise StoreUnavailable(f"etcd {path}: {_text(error)}") from error

    async def close(self) -> None:
        """Close all connections."""
        while self._gateways:
            _, gateway = self._gateways.popitem()
            await gateway.close()

    async def _call_logged_in(self, request: _Request, deadline: float) -> bytes:
        token = await self._logged_in(deadline)
        try:
            return await self._call_endpoints(request, token, deadline)
        except _ServerRefused as error:
            if not error.token_ended or not self._knobs.user:
                raise
        if self._token == token:
            self._forget_token()
        token = await self._logged_in(deadline)
        return await self._call_endpoints(request, token, deadline)

    async def _logged_in(self, deadline: float) -> str:
        """Return the token to send, logging in if needed; empty if none is needed."""
        async with self._logging_in:
            if self._token and self._token == self._unanswered:
                await self._check_token(self._token, deadline)
            if self._token is None:
                try:
                    password = read_secret(self._knobs.password_file)
                except (OSError, ValueError) as error:
                    raise _Unsent(f"the password cannot be read: {error}") from error
                body = msgspec.json.encode({"name": self._knobs.user, "password": password})
                try:
                    answer = await self._call_endpoints(_Request("/auth/authenticate", body), "", deadline)
                    self._token = _decode(answer, _Token).token
                except _ServerRefused as error:
                    if "not enabled" not in str(error):
                        raise
                    self._token = ""
            return self._token

    async def _check_token(self, token: str, deadline: float) -> None:
        """Forget a token to which etcd gives no answer, while it answers requests without a token.

        etcd holds a request until it has reached the raft index in its token. An etcd that lost its data or was
        restored is behind it, so that it would never answer. A new login costs etcd 60 ms of processor time, so one
        that answers nobody for a while must not get one from each of its clients.
        """
        deadline -= (deadline - time.monotonic()) / 2
        accepted, reached = await asyncio.gather(self._answers(token, deadline), self._answers("", deadline))
        if accepted:
            self._unanswered = None
        elif reached:
            self._forget_token()

    async def _answers(self, token: str, deadline: float) -> bool:
        """Return True if a read with a token is answered, even with a refusal."""
        try:
            await self._call_endpoints(_Request("/kv/range", _READ_NOTHING), token, deadline)
        except _ServerRefused:
            return True
        except (_Unsent, _Unclear):
            return False
        return True

    def _forget_token(self) -> None:
        self._token = None if self._knobs.user else ""

    async def _call_endpoints(self, request: _Request, token: str, deadline: float) -> bytes:
        """Call one endpoint after the other, each with its share of the remaining time."""
        count, endpoint, repeatable = len(self._knobs.endpoints), request.endpoint, request.repeatable
        order = [(self._preferred + step) % count for step in range(count)] if endpoint is None else [endpoint]
        problem: Exception = _Unsent("no time left")
        for place, index in enumerate(order):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            share_s = left_s / (len(order) - place)
            bounds = aiohttp.ClientTimeout(total=share_s if repeatable else left_s, sock_connect=share_s)
            try:
                answer = await self._call_endpoint(index, request, token, bounds)
            except (_Unsent, _Unclear) as error:
                problem = error
                if endpoint is None:
                    self._preferred = (index + 1) % count
                if isinstance(error, _Unclear) and not repeatable:
                    raise
            else:
                if endpoint is None:
                    self._preferred = index
                return answer
        try:
            raise problem
        finally:
            # The traceback refers to this frame: without the cycle, all that it holds is freed at once.
            del problem

    async def _call_endpoint(self, index: int, request: _Request, token: str, bounds: aiohttp.ClientTimeout) -> bytes:
        try:
            async with self._gateway(index).post(request.path, request.data, token, bounds) as response:
                self.dates[index] = response.headers.get("Date", "")
                answer = await _read(response, request.bytes_max)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Unsent(_text(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._unanswered = token
            raise _Unclear(_text(error)) from error
        if response.status >= _HTTP_ERROR:
            raise _error(response.status, answer)
        return answer

    def _gateway(self, index: int) -> EtcdGateway:
        # Created once and inside the loop: the library never releases a client completely.
        gateway = self._gateways.get(index)
        if gateway is None:
            gateway = self._gateways[index] = EtcdGateway(self._knobs.endpoints[index], self._tls)
        return gateway


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    try:
        return await read_body(response, bytes_max)
    except BodyTooLarge as error:
        raise ReplyTooLong(f"etcd: the answer has {error}") from error


async def _feed(
    content: aiohttp.StreamReader,
    on_line: Callable[[bytes], bool],
    idle_s: float,
    on_idle: Callable[[], Awaitable[None]],
) -> None:
    tail = bytearray()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await content.readany()
        except TimeoutError:
            await on_idle()
            continue
        if not chunk:
            return
        tail += chunk
        if b"\n" in chunk:
            *lines, rest = tail.split(b"\n")
            tail = rest
            if not all(on_line(bytes(line)) for line in lines if line):
                return
        if len(tail) > REPLY_BYTES_MAX:
            tail.clear()
            raise _Unclear(f"a line is longer than {REPLY_BYTES_MAX} bytes")


def _decode(answer: bytes, reply: type[_Reply]) -> _Reply:
    try:
        return msgspec.json.decode(answer, type=reply, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Unclear(f"the answer cannot be decoded: {error}") from error


def _error(status: int, answer: bytes) -> Exception:
    try:
        error = msgspec.json.decode(answer, type=_Error, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Unclear(f"HTTP status {status}")  # from a proxy, not from etcd
    text = (error.message or error.error or f"gRPC code {error.code}")[:500]
    return _Unclear(text) if error.code in _UNCLEAR else _ServerRefused(error.code, text)


def _refusal(path: str, error: _ServerRefused) -> Exception:
    text = f"etcd {path}: {error}"
    if error.code in (_INVALID, _DENIED, _UNAUTHENTICATED):
        return StoreDenied(text)
    return LeaseNotFound(text) if error.code == _NOT_FOUND else StoreUnavailable(text)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
