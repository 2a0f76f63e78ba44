"""A key in the store that lives as long as its owner: a lease, kept alive, and written again when it was lost."""

import asyncio
import time
from collections.abc import Callable

from loadline.adapters.backoff import backoff
from loadline.adapters.logs import bounded
from loadline.client.resources import wait_at_most
from loadline.errors import LoadlineError, StoreUnavailable
from loadline.ports import Compare, Entry, Store, Write

# A blip costs 0.2 s; after an outage of any length the worker is back within 5 s.
_RETRY_FIRST_S = 0.2
_RETRY_MOST_S = 5.0

_log = bounded("registration")


class Registration:
    """One key under one lease. ``run`` is the only one that talks to the store, so no two calls can cross.

    A key that somebody else holds is only taken over from an earlier owner: an owner that was frozen while a later one
    took its place gives up when it wakes.

    Args:
        store: Where the key lives.
        key: The key.
        value: Its first value.
        lease_ttl_s: How long the key outlives its owner; the lease is extended every third of it.
        is_later: Whether a value is of a later owner, to whom the key is left.
    """

    def __init__(
        self, store: Store, key: str, value: bytes, lease_ttl_s: int, is_later: Callable[[bytes], bool]
    ) -> None:
        self._store = store
        self._key = key
        self._wanted = value
        self._written: bytes | None = None
        self._revision = 0  # of the key as we know it; 0: it is not there
        self._lease_ttl_s = lease_ttl_s
        self._is_later = is_later
        self._lease_id = 0
        self._lease_ends_s = 0.0
        self._replace_lost = True
        self._withdrawn = False
        self._wake = asyncio.Event()
        self.gone = asyncio.Event()
        """Set once the key is gone for good: revoked, run out because the store was away, or another's now."""

    def write(self, value: bytes, *, replace_lost: bool = True) -> None:
        """Change the value as soon as the store can be reached. ``replace_lost`` False: a lost lease stays lost."""
        self._wanted = value
        self._replace_lost = replace_lost
        self._wake.set()

    def withdraw(self) -> None:
        """Revoke the lease as soon as the store can be reached, and register no more."""
        self._withdrawn = True
        self._wake.set()

    async def run(self) -> None:
        """Keep the key until it is withdrawn, or lost for good. Survives outages of the store of any length."""
        waits = backoff(_RETRY_FIRST_S, _RETRY_MOST_S)
        while not self.gone.is_set():
            self._wake.clear()
            try:
                await (self._revoke() if self._withdrawn else self._keep())
            except LoadlineError as error:
                _log.warning("registration_retried", key=self._key, error=str(error))
                delay_s = next(waits)
                if self._withdrawn and time.monotonic() > self._lease_ends_s:
                    self.gone.set()
            else:
                waits = backoff(_RETRY_FIRST_S, _RETRY_MOST_S)
                delay_s = self._lease_ttl_s / 3
            if not self.gone.is_set():
                await wait_at_most(self._wake, delay_s)

    async def _keep(self) -> None:
        """Extend the lease or get a new one, then write the value if it is not there yet."""
        asked_s = time.monotonic()
        if self._lease_id and await self._store.keep_alive(self._lease_id) == 0:
            _log.warning("lease_lost", key=self._key, replaced=self._replace_lost)
            self._lease_id, self._written, self._revision = 0, None, 0
            if not self._replace_lost:
                self.gone.set()
                return
        if not self._lease_id:
            self._lease_id = await self._store.grant(self._lease_ttl_s)
        self._lease_ends_s = asked_s + self._lease_ttl_s
        if self._written != self._wanted:
            value = self._wanted
            if await self._put(value):
                self._written = value
            else:
                remedy = "end this worker, or give each worker a name of its own"
                _log.error("registration_superseded", key=self._key, remedy=remedy)
                await self._revoke()

    async def _put(self, value: bytes) -> bool:
        """Write the value; false, and nothing is written, when a later owner holds the key."""
        for _ in range(2):
            compare = Compare(self._key, "mod", self._revision)
            outcome = await self._store.commit([compare], [Write(self._key, value, self._lease_id)])
            if outcome.committed:
                self._revision = outcome.revision
                return True
            held = await self._held()
            if held is not None and held.lease_id != self._lease_id and self._is_later(held.value):
                return False
            self._revision = held.mod_revision if held is not None else 0
        raise StoreUnavailable(f"{self._key} is being written by another")

    async def _held(self) -> Entry | None:
        entries = (await self._store.read(self._key)).entries  # by prefix: decode-1 is one of decode-17 too
        return next((entry for entry in entries if entry.key == self._key), None)

    async def _revoke(self) -> None:
        if self._lease_id:
            await self._store.revoke(self._lease_id)
        self.gone.set()
