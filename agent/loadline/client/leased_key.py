"""A key in the store under a lease, step by step: whoever awaits the steps brings the loop and the clock."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

from loadline.errors import LoadlineError, StoreUnavailable
from loadline.ports import Compare, Store, StoreEntry, Write


class LeaseStep(Enum):
    """What a step came to."""

    KEPT = auto()
    """The key is as it should be; the next step is due after a third of the lease."""
    LOST = auto()
    """The lease had run out; the next step, if any, is due at once."""
    SUPERSEDED = auto()
    """A later owner holds the key: it is left to that one."""
    REVOKED = auto()
    """The lease was given back."""


class LeasedKey:
    """One key under one lease. Steps come one after another, so no two calls can cross.

    A key that somebody else holds is only taken over from an earlier owner: an owner that was frozen while a later one
    took its place gives up when it wakes.

    Args:
        store: Where the key lives.
        key: The key.
        value: Its first value.
        lease_ttl_s: How long the key outlives its owner.
        is_later: Whether a value is of a later owner, to whom the key is left.
    """

    def __init__(
        self, store: Store, key: str, value: bytes, lease_ttl_s: int, is_later: Callable[[bytes], bool]
    ) -> None:
        self.key = key
        self.gone = False
        """The key is gone for good: revoked, run out because the store was away, or another's now."""
        self._store = store
        self._wanted = value
        self._written: bytes | None = None
        self._revision = 0  # of the key as we know it; 0: it is not there
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

    def withdraw(self) -> None:
        """Write what was to be written and revoke the lease with the next step, and register no more."""
        self._withdrawn = True

    async def step(self, now_s: float) -> LeaseStep:
        """Extend the lease and write what is new, or give the lease up.

        Args:
            now_s: Time that only goes forward, in s.

        Raises:
            LoadlineError: The store cannot be reached. Try again later, unless the key is ``gone``.
        """
        if not self._withdrawn:
            return await self._keep(now_s)
        self.gone = now_s > self._lease_ends_s  # so it is over even if the store does not answer
        await self._say_last()
        return await self._revoke(LeaseStep.REVOKED)

    async def _keep(self, now_s: float) -> LeaseStep:
        """Extend the lease or get a new one, then write the value if it is not there yet."""
        if self._lease_id and await self._store.keep_alive(self._lease_id) == 0:
            self._lease_id, self._written, self._revision = 0, None, 0
            self.gone = not self._replace_lost
            return LeaseStep.LOST
        if not self._lease_id:
            self._lease_id = await self._store.grant(self._lease_ttl_s)
        self._lease_ends_s = now_s + self._lease_ttl_s
        value = self._wanted
        if self._written != value:
            if not await self._put(value):
                return await self._revoke(LeaseStep.SUPERSEDED)
            self._written = value
        return LeaseStep.KEPT

    async def _put(self, value: bytes) -> bool:
        """Write the value; false, and nothing is written, when a later owner holds the key."""
        for _ in range(2):
            compare = Compare(self.key, "mod", self._revision)
            outcome = await self._store.commit([compare], [Write(self.key, value, self._lease_id)])
            if outcome.committed:
                self._revision = outcome.revision
                return True
            held = await self._held()
            if held is not None and held.lease_id != self._lease_id and self._is_later(held.value):
                return False
            self._revision = held.mod_revision if held is not None else 0
        raise StoreUnavailable(f"{self.key} is being written by another")

    async def _say_last(self) -> None:
        """Write what is new before the key goes: who leaves says so first, and is not taken for one that failed."""
        if self._lease_id and self._written is not None and self._written != self._wanted:
            with suppress(LoadlineError):
                await self._put(self._wanted)
            self._written = self._wanted  # one try: the lease is given up in any case

    async def _held(self) -> StoreEntry | None:
        entries = (await self._store.read(self.key)).entries  # by prefix: decode-1 is one of decode-17 too
        return next((entry for entry in entries if entry.key == self.key), None)

    async def _revoke(self, step: LeaseStep) -> LeaseStep:
        if self._lease_id:
            await self._store.revoke(self._lease_id)
        self.gone = True
        return step
