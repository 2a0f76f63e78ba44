"""The connections of one agent, for its shards: one watch of the store and one connection to the bus feed them all."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.state.partition import partition, shard_of_model
from loadline.core.state.settings import Settings
from loadline.ports import Bus, Store, StoreChange, StoreEntry, StoreSnapshot
from loadline.wire.keys import Keys

_OF_A_MODEL = frozenset({"workers", "decisions", "pause", "state"})
"""First segments of keys whose second segment is a model."""

Keyed = TypeVar("Keyed", StoreEntry, StoreChange)
OnSnapshot = Callable[[StoreSnapshot], None]
OnChanges = Callable[[list[StoreChange]], None]
OnConnection = Callable[[bool], None]
Follow = Callable[[str, OnSnapshot, OnChanges, OnConnection], Coroutine[object, object, None]]
"""Follows a prefix of the store; see ``Store.follow``."""
Connect = Callable[[OnConnection], Awaitable[None]]
"""Connects to the bus; see ``Bus.connect``."""


class KeyRouter:
    """Shards by key: keys of a model belong to the shard of the model, all others to all shards.

    Args:
        keys: Keys of the agent's namespace.
        settings: Settings of the agent, before they are split.
    """

    def __init__(self, keys: Keys, settings: Settings) -> None:
        self._keys = keys
        self._shards = settings.sharing.shards
        self._placed = partition(settings)

    @property
    def placed(self) -> dict[str, int]:
        """Shard of each model that is or was configured."""
        return dict(self._placed)

    def update(self, settings: Settings) -> None:
        """Take the models of new settings; models that are removed keep their shard, which knows their workers."""
        self._placed |= partition(settings)

    def split(self, items: Iterable[Keyed]) -> list[list[Keyed]]:
        """Return what concerns each shard, in order.

        Each key is looked up once: 20,000 workers and 64 shards took 4 s otherwise, half of a leader's lease.
        """
        parts: list[list[Keyed]] = [[] for _ in range(self._shards)]
        for item in items:
            shard = self._shard_of(item.key)
            for part in parts if shard is None else (parts[shard],):
                part.append(item)
        return parts

    def _shard_of(self, key: str) -> int | None:
        """Return the shard that must know the changes of a key; None: all must."""
        try:
            kind, *names = self._keys.split(key)
        except ValueError:
            return 0  # refused and counted there
        if kind not in _OF_A_MODEL or not names:
            return None
        placed = self._placed.get(names[0])
        return shard_of_model(names[0], self._shards) if placed is None else placed


class _Follower(Struct, frozen=True):
    on_snapshot: OnSnapshot
    on_changes: OnChanges
    on_connection: OnConnection


class Feeds:
    """Feeds of the shards of one agent. ``run`` drives the watch, once all shards follow it.

    Args:
        bus: Bus of the agent.
        store: Store of the agent.
        router: Shards by key.
        shards: Number of shards.
    """

    def __init__(self, bus: Bus, store: Store, router: KeyRouter, shards: int) -> None:
        self._bus = bus
        self._store = store
        self._router = router
        self._shards = shards
        self._followers: dict[int, _Follower] = {}
        self._complete = asyncio.Event()
        self._reread = asyncio.Event()
        self._prefix = ""
        self._connections: list[OnConnection] = []

    def follow_of(self, shard: int) -> Follow:
        """Return how a shard follows the store."""

        async def follow(
            prefix: str, on_snapshot: OnSnapshot, on_changes: OnChanges, on_connection: OnConnection
        ) -> None:
            self._prefix = prefix
            self._followers[shard] = _Follower(on_snapshot, on_changes, on_connection)
            if len(self._followers) == self._shards:
                self._complete.set()
            await asyncio.Event().wait()  # ``run`` calls back until the agent stops

        return follow

    async def connect(self, on_connection: OnConnection) -> None:
        """Connect to the bus for a shard, which hears of every change of the connection from now on."""
        self._connections.append(on_connection)
        if len(self._connections) == self._shards:
            await self._bus.connect(self._on_bus)

    def reread(self) -> None:
        """Read the whole store again, since other keys concern the shards now."""
        self._reread.set()

    async def run(self) -> None:
        """Follow the store for all shards until cancelled."""
        await self._complete.wait()
        while True:
            self._reread.clear()
            following = asyncio.create_task(
                self._store.follow(self._prefix, self._on_snapshot, self._on_changes, self._on_store)
            )
            waiting = asyncio.create_task(self._reread.wait())
            try:
                await asyncio.wait([following, waiting], return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()  # an exception ends the agent with its reason
            finally:
                following.cancel()
                waiting.cancel()
                await asyncio.gather(following, waiting, return_exceptions=True)

    def _on_snapshot(self, snapshot: StoreSnapshot) -> None:
        for shard, entries in enumerate(self._router.split(snapshot.entries)):
            self._followers[shard].on_snapshot(replace(snapshot, entries=entries))

    def _on_changes(self, changes: list[StoreChange]) -> None:
        for shard, concerned in enumerate(self._router.split(changes)):
            if concerned:
                self._followers[shard].on_changes(concerned)

    def _on_store(self, connected: bool) -> None:  # noqa: FBT001 - a fact, not a mode
        for follower in self._followers.values():
            follower.on_connection(connected)

    def _on_bus(self, connected: bool) -> None:  # noqa: FBT001 - a fact, not a mode
        for on_connection in self._connections:
            on_connection(connected)
