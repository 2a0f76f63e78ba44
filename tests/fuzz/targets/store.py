"""The store: answers of etcd's gateway to reads and a watch, as far as the events that an agent gets of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final, cast

import aiohttp
import msgspec
from aiohttp.base_protocol import BaseProtocol

from loadline.adapters.etcd_gateway import EtcdGateway
from loadline.adapters.etcd_store import EtcdStore
from loadline.core.vocabulary.events import AnyEvent
from loadline.errors import StoreDenied, StoreUnavailable
from loadline.runtime.registry import RegistryTranslator
from loadline.servers import EtcdKnobs
from tests.fuzz.target import Target
from tests.fuzz.targets.services import loop
from tests.fuzz.targets.wire import KEYS, RECORD, check_logged

_END: Final = b"\n\0"
"""Between two answers, of which the last one is that of the watch."""
_STORE_MS: Final = 5.0
"""CPU time per 16 KiB: a read and a watch, of which each key becomes an event."""


class Gateway:
    """The gateway of an etcd, which gives answers in turn, and none after the last one."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self._answers: Iterator[bytes] = iter(answers)

    def post(self, *_request: object) -> AbstractAsyncContextManager[Any]:
        """Send a request."""
        return self._answer()

    @asynccontextmanager
    async def _answer(self) -> AsyncIterator[Any]:
        answer = next(self._answers, None)
        if answer is None:
            raise aiohttp.ClientConnectionError
        running = asyncio.get_running_loop()
        content = aiohttp.StreamReader(BaseProtocol(running), 2**16, loop=running)
        content.feed_data(answer[: len(answer) // 2])
        content.feed_data(answer[len(answer) // 2 :])
        content.feed_eof()
        status = 400 if answer.startswith(b'{"code"') else 200
        yield SimpleNamespace(status=status, headers={}, content=content, close=lambda: None)


def read_store(data: bytes) -> None:
    """Read all keys and follow their changes, as an agent does; it must be able to record the events."""
    gateway = Gateway(data.split(_END)[:6])
    events: list[AnyEvent] = []
    translator = RegistryTranslator(KEYS, "all", events.append, check_logged, shared=True)

    def connect(index: int) -> EtcdGateway:
        assert index == 0
        return cast("EtcdGateway", gateway)

    async def follow() -> None:
        store = EtcdStore(EtcdKnobs())
        store._rpc._gateway = connect  # type: ignore[method-assign]  # no sockets
        with suppress(StoreUnavailable, StoreDenied):
            translator.on_snapshot(await store.read(KEYS.prefix))
            await store._watch(KEYS.prefix, 1, translator.on_changes)

    loop().run(follow())
    for event in events:
        msgspec.json.encode(event)


def _entry(key: str, value: object, revision: int) -> dict[str, object]:
    return {
        "key": f"{KEYS.prefix}{key}".encode(),
        "value": value if isinstance(value, bytes) else msgspec.json.encode(value),
        "create_revision": str(revision),
        "mod_revision": str(revision),
        "lease": "7587",
    }


def _answers() -> Iterator[bytes]:
    header = {"revision": "40", "member_id": "1"}
    worker, leader = _entry("workers/m/p/w", RECORD, 30), _entry("leader/all", b"agent-1", 31)
    page = msgspec.json.encode({"header": header, "kvs": [worker], "more": True, "count": "2"})
    rest = msgspec.json.encode({"header": header, "kvs": [leader], "count": "2"})
    changes = [
        {"result": {"header": header, "created": True}},
        {"result": {"events": [{"kv": {**worker, "mod_revision": "41"}}, {"type": "DELETE", "kv": {"key": b"x"}}]}},
        {"result": {"canceled": True, "cancel_reason": "compacted"}},
    ]
    yield _END.join([page, rest, b"\n".join(map(msgspec.json.encode, changes))])
    yield rest + _END + b'{"error":{"grpc_code":14,"message":"the server is stopping"}}'
    yield b'{"code":16,"message":"etcdserver: invalid auth token"}'


STORE_TARGETS: Final = (Target("store", read_store, list(_answers()), (), _STORE_MS),)
