"""Invariants by name: safety at every turn and every write of the store, and liveness at the end of every calm phase.

Reports of violations, saved plans and safeguard mutations refer to these names.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

INVARIANTS: Final[dict[str, str]] = {
    # decisions
    "I1-order": "committed decisions of a model rise strictly in (epoch, sequence), and no two share a sequence",
    "I2-fence": "every decision is committed under the leader key of its own epoch",
    "I2-applied": "a scaler accepts no decision older than one it has accepted, while its leader can be asked",
    "I3-lease": "commits start only before the lease's end less the margin, counted from the request of the lease",
    "I3-alone": "no two agents may commit at the same time, unless an operator has ended an epoch",
    "I3-yield": "an agent stops leading once it knows of a later epoch or of the loss of its lease",
    "I3-blind": "a leader without the bus leads for at most blind_after_ms",
    "I3-one": "at most one campaign or renewal is in flight",
    "I4-replicas": "the count of every pool is within its bounds, or existing workers above its maximum leave",
    "I4-budget": "the GPUs of a decision are within the model's budget",
    "I4-occupied": "no growth uses GPUs that leaving workers still occupy",
    "I4-capacity": "no growth exceeds the GPUs of a type or of a quota, occupied GPUs included",
    "I5-step": "a decision adds at most step_up_max workers to a pool and removes at most step_down_max",
    "I6-data": "no pool shrinks while too few of its ready workers report",
    "I8-window": "no shrink goes below the highest proposal of the stabilisation window",
    "I9-warm-up": "no shrink happens before a full warm-up with complete data after a start, a takeover or a gap",
    "I9-settled": "no decision is made before the registry and, in this epoch, the decisions were read",
    "I9-young": "a fleet without a decision is observed for stale_after_ms before the first one",
    "I10-newest": "the sequence of a worker's newest sample never falls within an incarnation",
    "I11-replay": "the replay of a journal gives byte-identical effects, across segments too",
    "I13-finite": "no count is negative, and every total equals the sum of its parts",
    "I14-bounded": "all state is bounded",
    "I14-one": "at most one commit of a model is in flight",
    "I15-expiry": "no decision is announced after its expiry, for longer than its TTL or before its commit",
    "I16-drain": "a drain ends with the worker's report, its death or the deadline, neither earlier nor later",
    "I16-leader": "only a leader drains workers",
    "I16-accepted": "no worker is commanded to drain by a decision that no scaler has accepted",
    "I16-goes-on": "a leader drains the victims of every decision in force, its predecessors' included",
    "I16-named": "a decision names all leaving workers of its pools",
    "I16-victims": "a shrink names all workers beyond its count, as scalers end the others without a drain",
    "I16-known": "no scaler ends workers that no decision names for a leader of another term that does not know them",
    "I16-asked": "an unaccepted drain command is repeated, and the key of a worker that never answers is removed",
    "I17-truth": "after an unknown outcome no decision of the model is made until its key was read back",
    "I17-used": "no sequence is tried twice in an epoch",
    "I18-reasons": "every decision and every hold has a reason",
    "I19-quiet": "after a shutdown request no commit starts, and the lease is given back after the last commit",
    # ledger
    "P1-announced": "an open decision is announced at least once in each interval",
    "P2-back-off": "the next decision waits after one that was refused or has expired",
    "P3-cooldown": "a change of a pool waits for the cooldown of its direction",
    "P4-answer": "a decision is applied or refused only by an answer that matches its counts",
    "P5-paused": "no decision is made for a paused model",
    "P6-bus": "no decision is made without the bus",
    "X-raises": "no unexpected exception is raised",
    # migrations
    "I20-once": "a request starts at most once under a hop, on one worker",
    "I20-owner": "a request runs under its newest hop on the owner known to the frontend, and under no later hop",
    "I20-stopped": "a migrated request has stopped on its source before it runs on its destination",
    "I21-fence": "only a leader migrates requests, in its own epoch and before its lease's end less the margin",
    "I21-stale": "no worker starts a migration of an older epoch than its newest",
    "I21-where": "a migration goes from one worker to another one that the leader believes to be ready",
    "I21-chain": "no worker is the source of one migration and the destination of another",
    "I21-bounds": "at most migrations_max requests migrate, and at most migrations_per_worker_max on a worker",
    # traffic, schedules and scale to zero
    "F1-once": "the arrivals of a report count at most once, unless its frontend was overdue",
    "F2-newest": "no report of a frontend replaces a newer one, unless its frontend was overdue",
    "F3-silent": "no pool that is sized for its traffic shrinks while a frontend of the window is overdue",
    "S1-minimum": "no decision gives a pool less than its minimum in a scheduled window",
    "S2-begins": "a pool has its scheduled minimum 3 s after the window begins by the leader's clock",
    "Z1-idle": "a model is scaled to zero only after its idle time without a reported request",
    "Z2-wake": "a request that is reported for a model without workers is answered by a decision within 3 s",
    # sidecars
    "E1-away": "a worker whose engine does not answer or makes no progress is not ready",
    "E2-start": "an incarnation of a worker spans one start of its engine",
    # liveness: checked at the end of every calm phase
    "L1-leader": "exactly one agent leads within the lease's TTL and 2 s",
    "L2-reference": "the counts match the demand",
    "L3-applied": "every decision is applied, and the fleet matches it",
    "L4-hold": "only the planner holds a model",
    "L5-turning": "every agent takes its turns at the times it requested",
    "L6-served": "every request that arrived before the calm phase has ended exactly once",
    "L7-forecast": "every model that forecasts has a forecast that began at most three intervals ago",
}
"""Name -> invariant. All are checked in every run."""

TESTED_ELSEWHERE: Final[dict[str, str]] = {
    "I7": "silence is not 0: tests/planners, tests/unit/planning/test_threshold.py, tests/unit/planning/test_hpa.py",
    "I10": "the order and repetition of reports do not change the fleet: tests/unit/fleet/test_fleet.py",
    "I11": "replay of journals under any PYTHONHASHSEED: tests/unit/runtime/test_journal_records.py, tests/golden",
    "I12": "decoding is total: tests/fuzz, tests/property/test_wire.py",
}
"""Invariants that other tests check, and the places of these tests."""


ReportViolation = Callable[[str, str], None]
"""Receives the name of a violated invariant and the detail."""


class Violation(Struct, frozen=True):
    """A violated invariant."""

    name: str
    at_ms: float
    """Virtual time in ms."""
    detail: str

    def __str__(self) -> str:
        return f"{self.name} at {self.at_ms / 1_000:.3f} s: {INVARIANTS[self.name]}. {self.detail}"


class Findings:
    """Violations of a run; the first one ends it."""

    def __init__(self) -> None:
        self.first: Violation | None = None

    def add(self, name: str, at_ms: float, detail: str) -> None:
        """Record a violation; only the first counts, since the others may follow from it."""
        if self.first is None:
            self.first = Violation(name, at_ms, detail)
