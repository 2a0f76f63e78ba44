"""Newest decision of one model, and where it stands."""

from typing import Literal

from msgspec import Struct

from loadline.core.vocabulary.decisions import Decision

State = Literal["none", "proposed", "unknown", "committed", "accepted", "applied", "refused", "expired"]
_NEVER = 2**53
OPEN: frozenset[State] = frozenset({"committed", "accepted"})


class LedgerEntry(Struct):
    """Newest decision of one model, and the decision that is being committed."""

    state: State = "none"
    decision: Decision | None = None
    revision: int = 0
    """Last known revision of the model's key; 0: no key."""
    left_out: dict[str, int] = {}
    """Last decided replicas of the pools that the decision in force leaves out, since they are not configured."""
    pending: Decision | None = None
    """Decision that is being committed (``proposed``), or whose commit has an unknown outcome."""
    pending_unknown: bool = False
    sequence: int = 0
    """Highest sequence used so far."""
    give_up_at_ms: int = _NEVER
    """Expiry one TTL after this agent learned of the decision, whose own expiry may be from a clock far ahead."""
    announce_at_ms: int = 0
    repeats: int = 0
    """Remaining announcements of an applied decision that a scaler requested."""
    accepted: bool = False
    """True once a scaler has accepted or applied the decision in force: from then on its victims are drained."""
    victims_stay: bool = False
    """True if the platform removes other workers than the victims of the decision in force, which are not drained."""
    reselected: bool = False
    """True if victims were selected again for a scaler's rule since a decision was last applied."""
    detail: str = ""
    """Last statement of a scaler about the decision in force, such as the reason why it waits."""
    failures: int = 0
    not_before_ms: int = 0

    @property
    def expires_at_ms(self) -> int:
        """Expiry of the decision in force, by this agent's clock."""
        return 0 if self.decision is None else min(self.decision.expires_at_ms, self.give_up_at_ms)

    @property
    def replicas_in_force(self) -> dict[str, int]:
        """Last decided replicas of all pools, those that are no longer configured included."""
        decided = () if self.decision is None else self.decision.targets
        return self.left_out | {target.pool: target.replicas for target in decided}
