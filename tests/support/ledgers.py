"""Ledgers of decisions in each state."""

from loadline.core.decisions.ledger import DecisionKnobs, Ledger, LedgerEntry, decision_id
from loadline.core.vocabulary.decisions import ApplyStatus, Decision, PoolTarget, StoredDecision
from loadline.core.vocabulary.events import DecisionAnswered

T0 = 1_700_000_000_000
KNOBS = DecisionKnobs(
    ttl_ms=60_000,
    announce_interval_ms=1_000,
    announce_interval_max_ms=10_000,
    retry_backoff_ms=5_000,
    retry_backoff_max_ms=30_000,
)
EPOCH = 40
READ_AT = 10_000
"""Revision at which the store was read, above all others here."""


def targets(replicas: int = 3) -> tuple[PoolTarget, ...]:
    return (PoolTarget("decode", "decode", replicas, 2),)


def propose(ledger: Ledger, now: int = T0, epoch: int = EPOCH) -> Decision:
    return ledger.propose("m", targets(), ("why",), epoch, 600_000, now)


def proposed() -> tuple[Ledger, LedgerEntry, Decision]:
    ledger = Ledger(KNOBS)
    decision = propose(ledger)
    return ledger, ledger.entries["m"], decision


def committed() -> tuple[Ledger, LedgerEntry, Decision]:
    ledger, entry, decision = proposed()
    assert ledger.confirm_commit(decision.decision_id, "m", 90, T0) == decision
    return ledger, entry, decision


def answer(decision: Decision, status: ApplyStatus, **other: int) -> DecisionAnswered:
    epoch, sequence = other.get("epoch", decision.epoch), other.get("sequence", decision.sequence)
    return DecisionAnswered(decision.decision_id, "m", epoch, sequence, "s", status, {})


def stored(epoch: int, sequence: int, revision: int, now: int = T0) -> StoredDecision:
    one = Decision(decision_id("m", epoch, sequence), "m", epoch, sequence, now, now + 60_000, targets(), ("why",))
    return StoredDecision(one, revision)
