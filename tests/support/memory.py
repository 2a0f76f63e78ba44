"""A bus and a store in memory, for tests of one client; what real servers do is proven against real servers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from loadline.errors import BusUnavailable, StoreUnavailable
from loadline.ports import Answer, Change, Compare, Entry, Offer, Outcome, Snapshot, Write


class MemoryBus:
    """Delivers at once, to subscriptions with or without a ``>`` at the end."""

    def __init__(self) -> None:
        self.connected = True
        self.published: list[tuple[str, bytes]] = []
        self._offers: list[tuple[str, Offer]] = []
        self._answers: dict[str, Answer] = {}

    async def connect(self, on_connection: Callable[[bool], None]) -> None:
        on_connection(self.connected)

    async def subscribe(self, subject: str, offer: Offer) -> None:
        self._offers.append((subject, offer))

    async def answer(self, subject: str, answer: Answer) -> None:
        self._answers[subject] = answer

    async def serve(self, name: str, version: str, endpoints: Mapping[str, tuple[str, Answer]]) -> None:
        raise NotImplementedError(name, version, endpoints)

    async def publish(self, subject: str, payload: bytes) -> None:
        if not self.connected:
            raise BusUnavailable("away")
        self.published.append((subject, payload))
        for pattern, offer in self._offers:
            if pattern == subject or (pattern.endswith(">") and subject.startswith(pattern[:-1])):
                offer(subject, payload)

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        if subject not in self._answers:
            raise BusUnavailable("nobody listens")
        async with asyncio.timeout(timeout_s):
            reply = await self._answers[subject](payload)
        if reply is None:
            raise BusUnavailable("no answer")
        return reply

    async def close(self) -> None:
        pass


class MemoryStore:
    """Keys under leases that end when they are revoked, or when a test ends them."""

    def __init__(self) -> None:
        self.reachable = True
        self.keys: dict[str, tuple[bytes, int]] = {}
        self.revisions: dict[str, int] = {}
        self.revision = 1
        self.leases: set[int] = set()
        self._leases_granted = 0

    def _check(self) -> None:
        if not self.reachable:
            raise StoreUnavailable("away")

    async def grant(self, ttl_s: int) -> int:
        self._check()
        assert ttl_s > 0
        self._leases_granted += 1
        self.leases.add(self._leases_granted)
        return self._leases_granted

    async def keep_alive(self, lease_id: int) -> int:
        self._check()
        return 10 if lease_id in self.leases else 0

    async def revoke(self, lease_id: int) -> None:
        self._check()
        self.end(lease_id)

    def end(self, lease_id: int) -> None:
        """What revoking or running out does."""
        self.leases.discard(lease_id)
        self.keys = {key: held for key, held in self.keys.items() if held[1] != lease_id}

    async def read(self, prefix: str) -> Snapshot:
        self._check()
        found = [(key, *held) for key, held in sorted(self.keys.items()) if key.startswith(prefix)]
        entries = [Entry(key, value, 1, self.revisions[key], lease_id) for key, value, lease_id in found]
        return Snapshot(entries, self.revision)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        self._check()
        for compare in compares:
            assert compare.target == "mod"
            there = self.revisions[compare.key] if compare.key in self.keys else 0
            if there != compare.revision:
                return Outcome(committed=False, revision=self.revision)
        self.revision += 1
        for write in writes:
            if write.lease_id not in self.leases:
                raise StoreUnavailable("no such lease")
            assert write.value is not None
            self.keys[write.key] = (write.value, write.lease_id)
            self.revisions[write.key] = self.revision
        return Outcome(committed=True, revision=self.revision)

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[Snapshot], None],
        on_changes: Callable[[list[Change]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        raise NotImplementedError(prefix, on_snapshot, on_changes, on_connection)

    async def close(self) -> None:
        pass
