"""Execution of the effects of leader elections, and of an agent's presence, on the store."""

from collections.abc import Iterable
from typing import Final

from loadline.core.state.partition import scope_of
from loadline.core.vocabulary.effects import Campaign, RenewLease, RenewPresence
from loadline.core.vocabulary.events import (
    AnyEvent,
    CampaignLost,
    LeadershipWon,
    LeaseRenewalFailed,
    LeaseRenewed,
    PresenceRenewed,
)
from loadline.errors import OutcomeUnknown, StoreDenied, StoreUnavailable
from loadline.ports import Bus, Compare, Store, StoreEntry, Write
from loadline.runtime.problem_log import Log, ProblemLog
from loadline.wire.codec import decode_epoch, decode_leader
from loadline.wire.keys import LEADER_SCOPE_ALL, Keys

STORE_FAILURES: Final = (StoreUnavailable, StoreDenied, OutcomeUnknown)
_SHARD_DIGITS_MAX: Final = 2
"""Digits of the largest number of shards, 64."""


class Election:
    """Executor of campaigns, and keeper of leases and presence, of one agent.

    Args:
        agent: Name of the agent.
        bus: Bus without which an agent does not count as live.
        store: Holds the leaders' keys.
        keys: Keys of the agent's namespace.
        log: Receives the log.
        problems: Receives the problems of calls that fail.
    """

    def __init__(self, agent: str, bus: Bus, store: Store, keys: Keys, log: Log, problems: ProblemLog) -> None:  # noqa: PLR0917 - one argument for each part
        self._agent = agent
        self._bus = bus
        self._store = store
        self._keys = keys
        self._log = log
        self._problems = problems

    async def campaign(self, effect: Campaign) -> AnyEvent:
        """Write the leader's key of a scope if it is free, or if its leader is to be deposed."""
        key, epoch_key = self._keys.leader(effect.scope), self._keys.epoch(effect.scope)
        scales = bool(effect.layout) or effect.scope == LEADER_SCOPE_ALL
        lease_id, deposed = 0, ""
        try:
            found = await self._store.read(self._keys.leaders if scales else key)
            entries = {entry.key: entry for entry in found.entries}
            present, last = entries.get(key), entries.get(epoch_key)
            if present is not None:
                self._problems.report("campaign_failed", "")
                leader = decode_leader(present.value)
                if present.mod_revision != effect.depose or not await self._depose(key, effect.depose):
                    return CampaignLost(effect.scope, leader, beat=present.mod_revision)
                deposed = leader
                self._log.warning("leader_deposed", leader=leader)
            layout = self._agree_on_layout(effect.layout, entries) if scales else _NOTHING_TO_AGREE
            if isinstance(layout, str):
                self._problems.report("campaign_failed", layout)
                return CampaignLost(effect.scope, "", layout)
            lease_id = await self._store.grant(effect.ttl_s)
            epoch = max(_newest_epoch(entries.values()) + 1, effect.epoch_min)
            outcome = await self._store.commit(
                # Without the second comparison, a term that began and ended since the read could have the same epoch.
                [Compare(key, "create", 0), Compare(epoch_key, "mod", last.mod_revision if last else 0), *layout[0]],
                [Write(epoch_key, str(epoch).encode()), *layout[1], Write(key, self._agent.encode(), lease_id)],
            )
        except STORE_FAILURES as error:
            if lease_id:
                await self.revoke(lease_id)  # if the write happened, no agent could lead until the lease expires
            self._problems.report("campaign_failed", str(error))
            return CampaignLost(effect.scope, "", str(error))
        self._problems.report("campaign_failed", "")
        if outcome.committed:
            self._log.info("leading", epoch=epoch)
            return LeadershipWon(effect.scope, epoch, lease_id, effect.requested_at_ms, outcome.revision, deposed)
        await self.revoke(lease_id)
        return CampaignLost(effect.scope, "", "another agent won the election")

    def _agree_on_layout(self, layout: str, entries: dict[str, StoreEntry]) -> tuple[list[Compare], list[Write]] | str:
        """Return how a campaign makes its layout the one in force, or why it cannot: agents with another one lead.

        Two layouts never have leaders at the same time: a campaign under a layout fails if it changes, and a change
        fails if any scope of the former layout has a leader.
        """
        stored = entries.get(self._keys.layout)
        current = "" if stored is None else stored.value.decode(errors="replace")
        compares = [Compare(self._keys.layout, "mod", 0 if stored is None else stored.mod_revision)]
        if current == layout:
            return compares, []
        former = [self._keys.leader(scope) for scope in _scopes_of(current)]
        leaders = sorted({decode_leader(entries[key].value) for key in former if key in entries})
        if leaders:
            return f"{', '.join(leaders)} leads with other shards or supplies; it yields when all agents have the same"
        compares += [Compare(key, "create", 0) for key in former]
        return compares, [Write(self._keys.layout, layout.encode() or None)]

    async def _depose(self, key: str, revision: int) -> bool:
        """Remove the key of a leader that no longer writes it; return False if it was written meanwhile."""
        return (await self._store.commit([Compare(key, "mod", revision)], [Write(key, None)])).committed

    async def renew(self, effect: RenewLease) -> AnyEvent:
        """Renew the lease of a leader, and write its key again."""
        key = self._keys.leader(effect.scope)
        ours = Compare(key, "lease", effect.lease_id)
        try:
            alive = await self._store.keep_alive(effect.lease_id) > 0
            write = Write(key, self._agent.encode(), effect.lease_id)
            alive = alive and (await self._store.commit([ours], [write])).committed
        except STORE_FAILURES as error:
            self._problems.report("renewal_failed", str(error))
            return LeaseRenewalFailed(effect.scope, effect.lease_id, lost=False, detail=str(error))
        self._problems.report("renewal_failed", "")
        if not alive:
            self._log.warning("lease_lost")
            text = "the lease has expired, or the key was removed"
            return LeaseRenewalFailed(effect.scope, effect.lease_id, lost=True, detail=text)
        return LeaseRenewed(effect.scope, effect.lease_id, effect.requested_at_ms)

    async def revoke(self, lease_id: int) -> None:
        """Revoke a lease; if the store is unreachable, it expires."""
        try:
            await self._store.revoke(lease_id)
        except STORE_FAILURES as error:
            self._log.info("lease_not_revoked", detail=str(error))  # it expires by itself

    async def renew_presence(self, effect: RenewPresence) -> PresenceRenewed:
        """Renew the agent's presence; without a bus it could lead nothing, so that it must not count as live."""
        lease_id = effect.lease_id
        if not self._bus.connected:
            if lease_id:
                await self.revoke(lease_id)
            return PresenceRenewed(0)
        try:
            if not lease_id or not await self._store.keep_alive(lease_id):
                lease_id = await self._store.grant(effect.ttl_s)
                await self._store.commit([], [Write(self._keys.agent(self._agent), self._agent.encode(), lease_id)])
        except STORE_FAILURES as error:
            self._problems.report("presence_not_renewed", str(error))
            return PresenceRenewed(0)
        self._problems.report("presence_not_renewed", "")
        return PresenceRenewed(lease_id)


_NOTHING_TO_AGREE: Final[tuple[list[Compare], list[Write]]] = ([], [])


def _newest_epoch(entries: Iterable[StoreEntry]) -> int:
    """Return the highest epoch of the scopes: models may have moved from one to another."""
    return max((decode_epoch(entry.value) for entry in entries if entry.key.endswith("/epoch")), default=0)


def _scopes_of(layout: str) -> list[str]:
    """Return the scopes of a layout in the store; those of one that is unreadable count as free."""
    shards = layout.partition(" ")[0]
    readable = shards.isascii() and shards.isdecimal() and len(shards) <= _SHARD_DIGITS_MAX
    return [scope_of(shard) for shard in range(int(shards))] if readable else [LEADER_SCOPE_ALL]
