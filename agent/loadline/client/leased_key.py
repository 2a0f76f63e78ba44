"""A key in the store under a lease, step by step: the caller of the steps supplies the loop and the clock."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Final

from loadline.errors import LoadlineError, StoreUnavailable
from loadline.ports import Compare, Store, Write

_NONE: Final = Compare("", "mod", 0)


class LeaseStep(Enum):
    """Result of a step."""

    RENEWED = auto()
    """The key is as it should be; the next step is due after a third of the lease."""
    RESTORED = auto()
    """The key had been removed or overwritten, and is written again; the next step is due as after ``RENEWED``."""
    LOST = auto()
    """The lease had expired; the next step, if any, is due at once."""
    SUPERSEDED = auto()
    """A later owner holds the key, which stays with that owner."""
    REVOKED = auto()
    """The lease was revoked."""


class LeasedKey:
    """One key under one lease. Steps come one after another, so no two calls can cross.

    A live lease does not prove that the key exists: any client that may write the key can remove it, or overwrite it
    under a lease that then ends. So every renewal compares the key with what was written last, and writes it again.

    The key is taken over from an earlier owner only: an owner that was frozen while a later one took its place gives
    up when it wakes.

    Args:
        store: Store of the key.
        key: The key.
        value: Its first value.
        lease_ttl_s: TTL of the lease: how long the key outlives its owner.
        is_later: Returns True for a value of a later owner, to whom the key is left.
    """

    def __init__(
        self, store: Store, key: str, value: bytes, lease_ttl_s: int, is_later: Callable[[bytes], bool]
    ) -> None:
        self.key = key
        self.gone = False
        """True once the key is lost for good: revoked, expired during an outage of the store, or taken by another
        owner.
        """
        self._store = store
        self._wanted = value
        self._written: bytes | None = None
        self._revision = 0  # of our last write; 0: the key does not exist
        self._wanted_key = key
        self._former = _NONE  # the key that the next write replaces, if it still is ours
        self._lease_ttl_s = lease_ttl_s
        self._is_later = is_later
        self._lease_id = 0
        self._lease_ends_s = 0.0
        self._replace_lost = True
        self._withdrawn = False

    def write(self, value: bytes, *, replace_lost: bool = True) -> None:
        """Change the value with the next step. ``replace_lost`` False: a lost lease stays lost."""
        self._wanted = value
        self._replace_lost = replace_lost

    def move(self, key: str, value: bytes) -> None:
        """Replace the key by another one with the next step, in one transaction."""
        self._wanted_key = key
        self.write(value)

    def withdraw(self) -> None:
        """Write a pending value and revoke the lease with the next step, and register no more."""
        self._withdrawn = True

    async def step(self, now_s: float) -> LeaseStep:
        """Renew the lease and write what is new or missing, or revoke the lease.

        Args:
            now_s: Monotonic time, in s.

        Raises:
            LoadlineError: The store cannot be reached. Try again later, unless the key is ``gone``.
        """
        if not self._withdrawn:
            return await self._renew(now_s)
        self.gone = now_s > self._lease_ends_s  # so it is over even if the store does not answer
        await self._write_last()
        return await self._revoke(LeaseStep.REVOKED)

    async def _renew(self, now_s: float) -> LeaseStep:
        """Renew the lease or get a new one, then write the value unless the store has it."""
        if self._lease_id and await self._store.keep_alive(self._lease_id) == 0:
            self._lease_id, self._written, self._revision = 0, None, 0
            self.gone = not self._replace_lost
            return LeaseStep.LOST
        if not self._lease_id:
            self._lease_id = await self._store.grant(self._lease_ttl_s)
        self._lease_ends_s = now_s + self._lease_ttl_s
        if self.key != self._wanted_key:  # here and not in move(), which may be called during a step
            await self._leave_key()
        value, step = self._wanted, LeaseStep.RENEWED
        if self._written == value:
            if await self._is_unchanged():
                return step
            self._written, step = None, LeaseStep.RESTORED
        if not await self._put(value):
            return await self._revoke(LeaseStep.SUPERSEDED)
        self._written = value
        return step

    async def _leave_key(self) -> None:
        """Go over to the wanted key; the next write replaces the present one if it is ours."""
        if self._written is not None:
            self._former = Compare(self.key, "mod", self._revision)
        else:  # its last write may have had an unknown outcome
            held = await self._store.get(self.key)
            if held is not None and held.lease_id == self._lease_id:
                self._former = Compare(self.key, "mod", held.mod_revision)
        if self._former.key == self._wanted_key:  # a transaction cannot both write and remove a key
            self._former = _NONE
        self.key, self._written, self._revision = self._wanted_key, None, 0

    async def _is_unchanged(self) -> bool:
        """Return True if our last write is the last write of the key."""
        return (await self._store.commit([Compare(self.key, "mod", self._revision)], [])).committed

    async def _put(self, value: bytes) -> bool:
        """Write the value; return False, and write nothing, if a later owner holds the key."""
        for _ in range(2):
            compares, writes = [Compare(self.key, "mod", self._revision)], [Write(self.key, value, self._lease_id)]
            if self._former.key:
                compares.append(self._former)
                writes.append(Write(self._former.key, None))
            outcome = await self._store.commit(compares, writes)
            if outcome.committed:
                self._revision, self._former = outcome.revision, _NONE
                return True
            if self._former.key:
                former = await self._store.get(self._former.key)
                if former is None or former.mod_revision != self._former.number:
                    self._former = _NONE  # another client has changed it, so it is not ours to remove
            held = await self._store.get(self.key)
            if held is not None and held.lease_id != self._lease_id and self._is_later(held.value):
                return False
            self._revision = held.mod_revision if held is not None else 0
        raise StoreUnavailable(f"another client writes {self.key} at the same time")

    async def _write_last(self) -> None:
        """Write a pending value before the key goes: a worker that leaves is not taken for one that failed."""
        wanted = self._written != self._wanted and self.key == self._wanted_key
        if self._lease_id and self._written is not None and wanted:
            with suppress(LoadlineError):
                await self._put(self._wanted)
            self._written = self._wanted  # one try: the lease is revoked in any case

    async def _revoke(self, step: LeaseStep) -> LeaseStep:
        if self._lease_id:
            await self._store.revoke(self._lease_id)
        self.gone = True
        return step
