"""What must hold, by name: safety at every turn of every agent and every write of the store, and liveness in the calm.

The names are those by which a violation is reported, a seed is kept and a rail is proven to matter.
"""

from typing import Final

from msgspec import Struct

INVARIANTS: Final[dict[str, str]] = {
    # decisions
    "I1-order": "committed decisions of a model rise strictly in (epoch, sequence), and no two share a sequence",
    "I2-fence": "a decision is committed under the leader's key of its own epoch, and under no other",
    "I2-applied": "a scaler that conforms never accepts a decision older than one that it accepted",
    "I3-lease": "a commit is decided on only before the lease's end less the margin, counted from the request",
    "I3-alone": "no two agents may commit at the same time, unless an operator has ended a term",
    "I3-yield": "an agent that knows of a later term, or that its lease is gone, leads no more",
    "I3-blind": "a leader that cannot reach the bus leads no longer than blind_after_ms",
    "I3-one": "a campaign or a renewal is asked for only when the one before was answered",
    "I4-replicas": "every pool's count is within its bounds",
    "I4-budget": "the GPUs of a decision are within the model's budget",
    "I4-occupied": "no growth takes GPUs that workers on their way out still occupy",
    "I4-capacity": "no growth takes GPUs of a type, or of a quota, that there are not or that somebody still occupies",
    "I5-step": "a decision adds at most step_up_max workers and takes at most step_down_max",
    "I6-data": "no pool shrinks while too few of its ready workers report",
    "I8-window": "no shrink is below the highest proposal of the stabilisation window",
    "I9-warm-up": "no shrink before a whole warm-up of complete data, after a start, a takeover or a gap",
    "I9-settled": "nothing is decided before the registry and, in this term, the decisions were read",
    "I9-young": "a fleet without a decision is watched for stale_after_ms before the first one",
    "I10-newest": "the sequence of a worker's newest sample never falls within a life of that worker",
    "I11-replay": "the replay of a journal gives byte-identical effects, across segments too",
    "I13-finite": "no count that is believed or decided is negative, and no sum differs from what it sums",
    "I14-bounded": "what is remembered is bounded",
    "I14-one": "at most one decision of a model is being committed",
    "I15-expiry": "nothing is announced past its time, for longer than its whole ttl, or before it was committed",
    "I16-drain": "a drain ends by the worker's word, its death or its deadline, and neither sooner nor later",
    "I16-leader": "only a leader drains",
    "I16-goes-on": "whoever leads drains the victims of every decision that stands, whoever chose them",
    "I16-named": "a decision names all workers of its pools that are on their way out",
    "I16-asked": "a worker that has not accepted its drain is asked again, and loses its lease if it never answers",
    "I17-truth": "after an unknown outcome nothing is decided for the model until its key was read back",
    "I17-used": "a sequence that was tried is never tried again in the same term",
    "I18-reasons": "every decision and every hold carries a reason",
    "I19-quiet": "after the request to stop no commit starts, and the lease is given back once none is under way",
    # what the rails of the ledger promise beside
    # moves of requests
    "I20-once": "under a hop a request begins to run once, at one worker",
    "I20-owner": "under its newest hop a request runs where the frontend says, and under a later one nowhere",
    "I20-stopped": "a request that is moved has stopped at its source before it runs at its destination",
    "I21-fence": "a leader alone moves requests, in its own term and before its lease's end less the margin",
    "I21-stale": "no worker begins a move of a term older than one of which it began another",
    "I21-where": "a move goes from one worker to another that is ready, as far as the leader can know",
    "I21-chain": "no worker gives requests away in one move and takes some in in another",
    "I21-bounds": "no more requests move than migrations_max, and at a worker than migrations_per_worker_max",
    "P1-announced": "an open decision is announced at least once in each interval",
    "P2-back-off": "after a decision that was refused or expired the next one waits",
    "P3-cooldown": "between two changes of a pool there is the cooldown of the second one's direction",
    "P4-answer": "a decision counts as applied or refused only by an answer to it that fits its counts",
    "P5-paused": "nothing is decided for a paused model",
    "P6-bus": "nothing is decided while the bus is away",
    "X-raises": "nothing raises what is not foreseen",
    # liveness: judged at the end of every calm
    "L1-leader": "there is exactly one leader within the lease's ttl and 2 s",
    "L2-reference": "the counts are those that the demand asks for",
    "L3-applied": "every decision was applied, and the fleet is what was decided",
    "L4-hold": "nothing but the planner holds a model",
    "L5-turning": "every agent turns when it wants to be woken",
    "L6-served": "every request that came before the calm has ended, once",
}
"""Name -> what holds. Checked all the time in every simulation."""

ELSEWHERE: Final[dict[str, str]] = {
    "I7": "silence is not zero: tests/planners, tests/unit/planning/test_threshold.py, tests/unit/planning/test_hpa.py",
    "I10": "any order and repetition of reports gives the same fleet: tests/unit/fleet/test_fleet.py",
    "I11": "replay of whole journals and under any PYTHONHASHSEED: tests/unit/runtime/test_record.py, tests/golden",
    "I12": "decoding is total: tests/fuzz, tests/property/test_wire.py",
}
"""What is proven elsewhere, or there too, and where."""


class Violation(Struct, frozen=True):
    """Something that must hold did not."""

    name: str
    at_ms: float
    """Virtual time."""
    detail: str

    def __str__(self) -> str:
        return f"{self.name} at {self.at_ms / 1_000:.3f} s: {INVARIANTS[self.name]}. {self.detail}"


class Findings:
    """Violations; the first one is what a play ends with."""

    def __init__(self) -> None:
        self.first: Violation | None = None

    def add(self, name: str, at_ms: float, detail: str) -> None:
        """Note a violation; what follows from the first one is no news."""
        if self.first is None:
            self.first = Violation(name, at_ms, detail)
