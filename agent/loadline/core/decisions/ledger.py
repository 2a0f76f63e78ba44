"""Ledger of decisions: one entry per model, from proposal to application.

    open -> proposed --DecisionCommitted--> committed --accepted--> accepted --done--> applied
               |                                |          |
               |--CommitRefused--> (dropped)    |          +--refused--> refused
               |--CommitUnknown--> unknown      +--ttl--> expired
                         --DecisionsRead--> committed | (dropped)

The store is the source of truth. A committed decision is announced on the bus until a scaler has applied it or it
expires. A decision whose commit has an unknown outcome blocks its model until the key has been read back, and its
sequence is never used again.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from loadline.core.vocabulary.decisions import Decision, PoolTarget, StoredDecision
from loadline.core.vocabulary.effects import AnnounceDecision, CommitDecision, Effect, RaiseAlarm
from loadline.core.vocabulary.events import DecisionAnswered
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.scalars import YEAR_MS


class DecisionKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of decisions."""

    ttl_ms: Annotated[
        int,
        Meta(ge=1, le=YEAR_MS, description="Time after which a decision that is not applied expires, with an alarm."),
    ] = 900_000
    announce_interval_ms: Annotated[
        int, Meta(ge=1, description="Time between two announcements of a decision until a scaler accepts it.")
    ] = 1_000
    announce_interval_max_ms: Annotated[
        int, Meta(ge=1, description="Time between two announcements of a decision that a scaler has accepted.")
    ] = 10_000
    retry_backoff_ms: Annotated[
        int, Meta(ge=1, description="Wait after a decision expired or was refused; doubles with each failure.")
    ] = 5_000
    retry_backoff_max_ms: Annotated[
        int, Meta(ge=1, description="Longest wait after a decision expired or was refused.")
    ] = 300_000
    blocking: Annotated[
        bool,
        Meta(
            description="Decide nothing new for a model until the decision that a scaler has accepted is done, refused"
            " or expired."
        ),
    ] = False


State = Literal["none", "proposed", "unknown", "committed", "accepted", "applied", "refused", "expired"]
REPEATS = 3
"""Announcements of an applied decision for a scaler that requests it: the bus delivers at most once."""
_NEVER = 2**53
OPEN: frozenset[State] = frozenset({"committed", "accepted"})


class LedgerEntry(Struct):
    """Newest decision of one model, and the decision that is being committed."""

    state: State = "none"
    decision: Decision | None = None
    revision: int = 0
    """Last known revision of the model's key; 0: no key."""
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


def decision_id(model: str, epoch: int, sequence: int) -> str:
    """Return the id of a decision, the same on every agent."""
    return hashlib.sha256(f"{model}\0{epoch}\0{sequence}".encode()).hexdigest()[:16]


class Ledger(Struct):
    """Decisions of all models. Times are in Unix ms."""

    knobs: DecisionKnobs
    entries: dict[str, LedgerEntry] = field(default_factory=dict)
    live: dict[str, None] = field(default_factory=dict)
    """Models with an open decision, which is announced."""

    def entry(self, model: str) -> LedgerEntry:
        """Return the entry of a model."""
        found = self.entries.get(model)
        if found is None:
            found = self.entries[model] = LedgerEntry()
        return found

    def propose(  # noqa: PLR0917 - one argument for each fact that a decision states
        self,
        model: str,
        targets: tuple[PoolTarget, ...],
        reasons: tuple[str, ...],
        epoch: int,
        drain_ttl_ms: int,
        now: int,
    ) -> Decision:
        """Create a pending decision; the caller ensures that none is pending."""
        entry = self.entry(model)
        entry.sequence += 1
        entry.pending = Decision(
            decision_id=decision_id(model, epoch, entry.sequence),
            model=model,
            epoch=epoch,
            sequence=entry.sequence,
            issued_at_ms=now,
            expires_at_ms=now + self.knobs.ttl_ms,
            targets=targets,
            reasons=reasons,
            drain_ttl_ms=drain_ttl_ms,
        )
        entry.pending_unknown = False
        return entry.pending

    def pending(self) -> dict[str, dict[str, int]]:
        """Return the counts that are being committed, by model and pool."""
        pending = ((model, entry.pending) for model, entry in self.entries.items())
        return {model: {t.pool: t.replicas for t in one.targets} for model, one in pending if one is not None}

    def commit_effect(self, model: str, scope: str, lease_id: int) -> CommitDecision:
        """Return the effect that commits the pending decision."""
        entry = self.entries[model]
        assert entry.pending is not None  # noqa: S101 - propose() came first
        return CommitDecision(entry.pending, scope, lease_id, entry.revision)

    def confirm_commit(self, decision: str, model: str, revision: int, now: int) -> Decision | None:
        """Record that the store accepted a decision; return it if it was the pending one."""
        entry = self.entry(model)
        if entry.pending is None or entry.pending.decision_id != decision:
            return None
        return self._adopt(entry, entry.pending, revision, now)

    def unaccepted(self, model: str) -> Decision | None:
        """Return the committed decision of a model that no scaler has accepted yet."""
        entry = self.entries.get(model)
        return entry.decision if entry is not None and entry.state == "committed" else None

    def drop_pending(self, decision: str, model: str, now: int) -> bool:
        """Record that the store refused a decision; return True if it was the pending one."""
        entry = self.entry(model)
        if entry.pending is None or entry.pending.decision_id != decision:
            return False
        entry.pending = None
        self._back_off(entry, now)
        return True

    def mark_unknown(self, decision: str, model: str) -> bool:
        """Record that the outcome of a commit is unknown; return True if it was the pending one."""
        entry = self.entry(model)
        if entry.pending is None or entry.pending.decision_id != decision:
            return False
        entry.pending_unknown = True
        return True

    def load(self, stored: list[StoredDecision], revision: int, now: int) -> list[Decision]:
        """Load all stored decisions, as of a revision of the store; return those that the ledger did not have."""
        fresh: list[Decision] = []
        by_model = {s.decision.model: s for s in stored}
        for model, found in by_model.items():
            entry = self.entry(model)
            if entry.revision > revision:
                continue  # it was committed after the read was served
            known = entry.decision
            # An older one is from before the store lost data: the known decision stays in force.
            if known is None or (found.decision.epoch, found.decision.sequence) > (known.epoch, known.sequence):
                fresh.append(self._adopt(entry, found.decision, found.revision, now))
            entry.revision = found.revision
        for model, entry in self.entries.items():
            if model not in by_model and entry.revision <= revision:
                entry.revision = 0
            if entry.pending is not None and entry.pending_unknown:
                # The commit may still succeed later; its sequence stays used, so no other decision can have it.
                entry.pending = None
                self._back_off(entry, now)
        return fresh

    def answered(self, event: DecisionAnswered) -> Decision | None:
        """Return the decision in force if a scaler answered that one."""
        entry = self.entries.get(event.model)
        decision = entry.decision if entry else None
        number = (event.decision_id, event.epoch, event.sequence)
        if decision is None or number != (decision.decision_id, decision.epoch, decision.sequence):
            return None
        return decision

    def select_again(self, event: DecisionAnswered) -> bool:
        """Record that the platform removes other workers than the victims of the decision in force.

        Returns:
            True if the same counts should be decided with other victims. That is once until a decision is applied:
            scalers of one model that declare different rules would otherwise cause decisions without end.
        """
        entry = self.entries[event.model]
        again = not entry.reselected and event.status != "done"
        entry.victims_stay, entry.reselected = True, True
        return again

    def blocks(self, model: str, epoch: int) -> bool:
        """Return True if no decision may follow before the one in force has ended; ``epoch`` is that of this term.

        A decision of an earlier term may have been accepted before this one began.
        """
        entry = self.entries.get(model)
        if not self.knobs.blocking or entry is None or entry.decision is None or entry.victims_stay:
            return False
        return entry.state == "accepted" or (entry.state == "committed" and entry.decision.epoch != epoch)

    def is_open(self, model: str) -> bool:
        """Return True if a decision is in force that is neither applied nor refused nor expired."""
        entry = self.entries.get(model)
        return entry is not None and entry.state in OPEN

    def record_answer(
        self, event: DecisionAnswered, now: int, *, decide_again: bool = False
    ) -> tuple[Rejection | None, list[Effect]]:
        """Record the answer of a scaler; return the reason for rejecting it, if any, and alarms.

        Args:
            event: The answer.
            now: Unix time in ms.
            decide_again: True if a refusal is no failure, since another decision follows at once.
        """
        decision = self.answered(event)
        if decision is None:
            return Rejection.UNKNOWN_DECISION, []
        entry = self.entries[event.model]
        if entry.state == "applied" and event.status == "done":
            entry.detail = event.detail  # what has happened to its workers since
        if entry.state not in OPEN:
            return None, []
        entry.accepted, entry.detail = entry.accepted or event.status != "refused", event.detail
        contradicts = any(event.observed.get(t.pool, t.replicas) != t.replicas for t in decision.targets)
        if event.status == "done" and not contradicts:
            entry.state, entry.failures, entry.reselected = "applied", 0, False
            del self.live[event.model]
        elif event.status == "refused":
            entry.state = "refused"
            del self.live[event.model]
            if decide_again:
                return None, []
            self._back_off(entry, now)
            text = f"{event.scaler} refused {decision.decision_id}: {event.detail or 'no reason given'}"
            return None, [RaiseAlarm("decision_refused", event.model, text)]
        elif entry.state == "committed":
            entry.state = "accepted"
            entry.announce_at_ms = now + self.knobs.announce_interval_max_ms
        return None, []

    def announce_again(self, model: str, now: int) -> bool:
        """Announce the decision in force again at once; return False if it expired or was refused."""
        entry = self.entry(model)
        if now >= entry.expires_at_ms or entry.state in {"refused", "expired"}:
            return False
        entry.announce_at_ms, entry.repeats = now, REPEATS
        self.live[model] = None
        return True

    def has_lost(self, revisions: Mapping[str, int], revision: int) -> bool:
        """Return True if the store has lost a decision: a key has a lower revision than before, or is missing.

        Args:
            revisions: Revisions of the keys by model.
            revision: Revision of the store at which they were read.
        """
        return any(revisions.get(model, 0) < entry.revision <= revision for model, entry in self.entries.items())

    def unstored(self, stored: list[StoredDecision], revision: int) -> list[str]:
        """Return the models whose decision in force is newer than the one in the store, as of a revision."""
        found = {one.decision.model: (one.decision.epoch, one.decision.sequence) for one in stored}
        return [
            model
            for model, entry in self.entries.items()
            if entry.decision is not None
            and entry.revision <= revision
            and found.get(model, (0, 0)) < (entry.decision.epoch, entry.decision.sequence)
        ]

    def forget_revisions(self) -> None:
        """Forget the revisions of a store that has lost data."""
        for entry in self.entries.values():
            entry.revision = 0

    def stop_announcing(self, model: str) -> None:
        """Stop announcing a decision that stays in force."""
        self.entries[model].state = "applied"
        self.live.pop(model, None)

    def forget_before(self, model: str, epoch: int) -> bool:
        """Forget the decision in force if it is of an earlier epoch; its sequence stays used."""
        decision = self.entries[model].decision
        if decision is None or decision.epoch >= epoch:
            return False
        self.retire(model)
        return True

    def retire(self, model: str) -> None:
        """Remove a model, except for its sequence, which stays used if the model is configured again."""
        self.live.pop(model, None)
        entry = self.entries.get(model)
        if entry is not None:
            self.entries[model] = LedgerEntry(revision=entry.revision, sequence=entry.sequence)

    def clear_pending(self) -> None:
        """Drop pending decisions when this agent no longer leads; the store holds the committed ones."""
        for entry in self.entries.values():
            entry.pending = None

    def tick(self, model: str, now: int) -> list[Effect]:
        """Announce or expire the open decision of a model, whichever is due."""
        entry = self.entries[model]
        decision = entry.decision
        if decision is None or model not in self.live:
            return []
        if entry.state not in OPEN:
            return self._repeat_once(entry, decision, now)
        if now >= entry.expires_at_ms:
            accepted, entry.state = entry.state == "accepted", "expired"
            del self.live[model]
            self._back_off(entry, now)
            text = f"{decision.decision_id} was {'not finished' if accepted else 'not accepted by any scaler'} in time"
            return [RaiseAlarm("decision_expired", model, text)]
        if now < entry.announce_at_ms:
            return []
        accepted = entry.state == "accepted"
        entry.announce_at_ms = now + (
            self.knobs.announce_interval_max_ms if accepted else self.knobs.announce_interval_ms
        )
        return [_announcement(entry, decision, now)]

    def _repeat_once(self, entry: LedgerEntry, decision: Decision, now: int) -> list[Effect]:
        """Announce an applied decision that a scaler requested, without opening it again."""
        expired = now >= entry.expires_at_ms
        if not expired and now < entry.announce_at_ms:
            return []
        entry.repeats -= 1
        entry.announce_at_ms = now + self.knobs.announce_interval_ms
        if entry.repeats <= 0 or expired:
            del self.live[decision.model]
        return [] if expired else [_announcement(entry, decision, now)]

    def next_wake(self) -> int | None:
        """Return the time at which ``tick`` is next due for any model; None if it is not."""
        wakes = []
        for model in self.live:
            entry = self.entries[model]
            if entry.decision is not None:
                wakes.append(min(entry.announce_at_ms, entry.expires_at_ms))
        return min(wakes, default=None)

    def _adopt(self, entry: LedgerEntry, decision: Decision, revision: int, now: int) -> Decision:
        entry.decision, entry.revision, entry.pending = decision, revision, None
        entry.accepted, entry.victims_stay, entry.detail = False, False, ""
        # The expiry of another agent's decision is from another clock: it is trusted for at most one TTL.
        entry.give_up_at_ms = now + self.knobs.ttl_ms
        entry.sequence = max(entry.sequence, decision.sequence)
        # Whether an expired decision was applied is unknown; the registry lists the existing workers.
        entry.state = "committed" if now < decision.expires_at_ms else "applied"
        if entry.state == "committed":
            self.live[decision.model] = None
        else:
            self.live.pop(decision.model, None)
        entry.announce_at_ms = now
        return decision

    def _back_off(self, entry: LedgerEntry, now: int) -> None:
        wait_ms = min(self.knobs.retry_backoff_ms << min(entry.failures, 16), self.knobs.retry_backoff_max_ms)
        entry.failures += 1
        entry.not_before_ms = now + wait_ms


def _announcement(entry: LedgerEntry, decision: Decision, now: int) -> AnnounceDecision:
    return AnnounceDecision(decision, entry.expires_at_ms - now)
