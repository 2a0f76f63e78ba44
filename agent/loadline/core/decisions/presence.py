"""Presence of an agent: a leased key by which other agents see that it lives."""

from msgspec import Struct

from loadline.core.vocabulary.effects import Effect, LeavePresence, RenewPresence


class Presence(Struct):
    """State of the key of this agent."""

    ttl_s: int
    retry_ms: int
    lease_id: int = 0
    """Lease of the key; 0: there is none."""
    renew_at_ms: int = 0
    awaiting: bool = False
    """True while a renewal is in progress."""
    left: bool = False
    seen: bool = False
    """True if the last list of agents has this one."""
    missing: bool = False
    """True if somebody removed the key during a renewal, whose answer does not tell."""

    def tick(self, now: int) -> list[Effect]:
        """Return the renewal that is due."""
        if self.left or self.awaiting or now < self.renew_at_ms:
            return []
        self.awaiting = True
        return [RenewPresence(self.lease_id, self.ttl_s)]

    def renewed(self, lease_id: int, now: int) -> list[Effect]:
        """Record the lease of the key after a renewal; 0: there is none, so try again soon."""
        self.awaiting, self.lease_id = False, lease_id
        self.renew_at_ms = now + (self.ttl_s * 1_000 // 3 if lease_id else self.retry_ms)
        if self.missing:
            self.missing, self.lease_id, self.renew_at_ms = False, 0, now
        return [LeavePresence(lease_id)] if self.left and lease_id else []

    def listed(self) -> None:
        """Record that other agents see this one."""
        self.seen, self.missing = True, False

    def lost(self, now: int) -> None:
        """Write the key again, since somebody removed it."""
        if self.awaiting:
            self.missing = self.seen or bool(self.lease_id)  # at the start there is no key yet
        elif self.lease_id:
            self.lease_id, self.renew_at_ms = 0, now
        self.seen = False

    def leave(self) -> list[Effect]:
        """Remove the key, since this agent stops."""
        if self.left:
            return []
        self.left = True
        return [LeavePresence(self.lease_id)] if self.lease_id and not self.awaiting else []

    def next_wake(self) -> int | None:
        """Return the time of the next renewal; None: until an event."""
        return None if self.left or self.awaiting else self.renew_at_ms
