"""History of an agent: decisions, plans that led to none, and migrations, each complete when it has ended.

Times are in Unix ms, by the agent's clock; None or 0: it has not come to that.
"""

from typing import Literal

from msgspec import Struct

from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.migrations import Migration
from loadline.core.vocabulary.reasons import Explanation

DecisionOutcome = Literal["open", "applied", "refused", "expired", "superseded", "not_committed"]
MigrationOutcome = Literal["open", "done", "aborted", "refused", "lost"]


class DecisionRecord(Struct):
    """A decision from the report that led to it to its end."""

    decision: Decision
    explanation: Explanation | None
    reporter: str = ""
    """Worker or frontend whose report was the newest one of the model at that time; empty: none since the start."""
    reported_at_ms: int = 0
    committed_at_ms: int = 0
    announced_at_ms: int = 0
    """Time of the first announcement."""
    accepted_at_ms: int = 0
    """Time of a scaler's first answer that is no refusal."""
    ended_at_ms: int | None = None
    outcome: DecisionOutcome = "open"
    scaler: str = ""
    detail: str = ""
    """Last statement of the scaler, or the reason why the decision was not committed."""


class PlanRecord(Struct):
    """Consecutive plans of a model with the same hold or advice; the numbers are those of the first."""

    explanation: Explanation
    plans: int = 1
    ended_at_ms: int | None = None


class MigrationRecord(Struct):
    """A migration from its command to its end."""

    command: Migration
    sent_at_ms: int
    accepted_at_ms: int = 0
    ended_at_ms: int | None = None
    outcome: MigrationOutcome = "open"
    requests: int = 0
    moved: int = 0
    failed: int = 0
    tokens: int = 0
    reason: str = ""
    detail: str = ""


AnyRecord = DecisionRecord | PlanRecord | MigrationRecord
