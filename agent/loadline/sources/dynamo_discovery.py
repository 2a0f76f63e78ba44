"""Publishers of forward-pass metrics in Dynamo's etcd: who publishes where. Pure."""

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.sources.dynamo_records import TOPIC

PREFIX: Final = "v1/event_channels/"
PUBLISHERS_MAX: Final = 10_000


class _Scope(Struct, frozen=True):
    namespace: str = ""
    component: str = ""
    endpoint: dict[str, Any] = {}


class _Location(Struct, frozen=True):
    endpoint: Annotated[str, Meta(max_length=256)]


class _Transport(Struct, frozen=True):
    kind: str
    config: _Location


class _Channel(Struct, frozen=True):
    """Record of an event channel; Dynamo 1.3 names its scope in the record, earlier versions beside the topic."""

    topic: str
    transport: _Transport
    scope: _Scope = _Scope()
    namespace: str = ""
    component: str = ""


class Publisher(Struct, frozen=True):
    """A ZeroMQ publisher of forward-pass metrics."""

    namespace: str
    component: str
    endpoint: str


_decoder: Final = msgspec.json.Decoder(_Channel)


class Publishers:
    """The registered publishers; during an outage of etcd, those last known.

    Args:
        on_change: Takes all publishers after each change.
    """

    def __init__(self, on_change: Callable[[set[Publisher]], None]) -> None:
        self._by_key: dict[str, Publisher] = {}
        self._on_change = on_change

    def read(self, snapshot: StoreSnapshot) -> None:
        """Replace all publishers with those of a snapshot."""
        self._by_key.clear()
        for entry in snapshot.entries:
            self._put(entry.key, entry)
        self._on_change(set(self._by_key.values()))

    def follow(self, changes: list[StoreChange]) -> None:
        """Apply changes."""
        for change in changes:
            self._put(change.key, change.entry)
        self._on_change(set(self._by_key.values()))

    def _put(self, key: str, entry: StoreEntry | None) -> None:
        self._by_key.pop(key, None)
        publisher = None if entry is None else _publisher(entry.value)
        if publisher is not None and len(self._by_key) < PUBLISHERS_MAX:
            self._by_key[key] = publisher


def _publisher(value: bytes) -> Publisher | None:
    """Return the publisher that a record describes; None: it is of another topic or transport."""
    try:
        channel = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # a channel of another transport has another form
    if channel.topic != TOPIC or channel.transport.kind != "Zmq":
        return None
    inner = channel.scope.endpoint
    namespace = channel.scope.namespace or str(inner.get("namespace", "")) or channel.namespace
    component = channel.scope.component or str(inner.get("component", "")) or channel.component
    return Publisher(namespace, component, channel.transport.config.endpoint)
