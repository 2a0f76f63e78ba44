"""What becomes of a pair of workers, or of a policy, and why: a closed list of words with a sentence each."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.migrations import MigrationOrder, MigrationRule


class MigrationCode(StrEnum):
    """Why a move was planned or not. Append only: people and programs match on these words."""

    PLANNED = "planned"
    ADVISED = "advised"
    # why a pair is none
    GAP_TOO_SMALL = "gap_too_small"
    NO_ROOM = "no_room"
    FINISHES_SOONER = "finishes_sooner"
    WORKER_SOON_READY = "worker_soon_ready"
    MIGRATIONS_MAX = "migrations_max"
    IN_FLIGHT = "in_flight"
    # why a policy has no pair
    NO_SOURCE = "no_source"
    NO_DESTINATION = "no_destination"
    TOO_SOON = "too_soon"
    NOT_EMPTIED = "not_emptied"
    TOO_MANY_SILENT = "too_many_silent"
    GIVEN_WORK = "given_work"
    LOAD_UNKNOWN = "load_unknown"
    NO_SLOTS = "no_slots"
    PAUSED = "paused"


SENTENCES: Final[dict[MigrationCode, str]] = {
    MigrationCode.PLANNED: "up to {requests:g} requests, some {tokens:.0f} tokens, are asked to move",
    MigrationCode.ADVISED: (
        "up to {requests:g} requests, some {tokens:.0f} tokens, would have to move: no_operation is set"
    ),
    MigrationCode.GAP_TOO_SMALL: ("the loads {source:.3g} and {destination:.3g} are not {least:g} apart"),
    MigrationCode.NO_ROOM: "a request has {tokens:.0f} tokens, the destination has room for {room:.0f}",
    MigrationCode.FINISHES_SOONER: (
        "to copy a request takes {copy_ms:.0f} ms, and it has {left_ms:.0f} ms left on average"
    ),
    MigrationCode.WORKER_SOON_READY: "a worker that is empty is ready in {left_ms:g} ms",
    MigrationCode.MIGRATIONS_MAX: "{requests:g} requests are moving already, as many as may",
    MigrationCode.IN_FLIGHT: "a move between the two is in flight",
    MigrationCode.NO_SOURCE: "no worker has to give requests away",
    MigrationCode.NO_DESTINATION: ("no worker can take requests in"),
    MigrationCode.TOO_SOON: "a worker could have been emptied for {age_ms:g} ms, {needed_ms:g} ms are needed",
    MigrationCode.NOT_EMPTIED: "the others have room for {room:g} of {requests:g} requests of the worker",
    MigrationCode.TOO_MANY_SILENT: "{silent:g} of {workers:g} workers are silent: it is rather that we do not hear",
    MigrationCode.LOAD_UNKNOWN: (
        "{unknown:g} of {workers:g} workers do not say what the metric needs: load is not known"
    ),
    MigrationCode.NO_SLOTS: "{workers:g} workers have to give requests away, and none can now: they do so, or refused",
    MigrationCode.PAUSED: "the model is paused: its requests stay where they are",
    MigrationCode.GIVEN_WORK: "workers that could be emptied are given work: each was in the last {within_ms:g} ms",
}
"""One sentence for each code, filled from its numbers."""


class MigrationAmount(Struct, frozen=True):
    """How much a move takes."""

    rule: MigrationRule
    order: MigrationOrder
    value: float
    requests: int
    """Most that move: as many as there are slots for."""
    tokens: int
    """That are thought to move."""
    tokens_max: int | None = None
    """Most that the destination has room for; None: that is not known."""


class NotPlanned(Struct, frozen=True):
    """Why a pair is none."""

    code: MigrationCode
    numbers: dict[str, float] = {}

    @classmethod
    def of(cls, code: MigrationCode, **numbers: float) -> "NotPlanned":
        """With the numbers that led to it, as floats."""
        return cls(code, {name: float(value) for name, value in numbers.items()})


class PairReport(Struct, frozen=True):
    """A pair that was looked at."""

    source: str
    destination: str
    code: MigrationCode
    numbers: dict[str, float] = {}


class PolicyReport(Struct, frozen=True):
    """What a policy last saw when it had a reason to look: who could give, who could take, and what became of them."""

    model: str
    policy: str
    group: str
    at_ms: int
    code: MigrationCode
    """``planned`` where at least one pair was; else why none was."""
    numbers: dict[str, float] = {}
    sources: int = 0
    destinations: int = 0
    pairs: tuple[PairReport, ...] = ()


def sentence(code: MigrationCode, numbers: dict[str, float]) -> str:
    """For a person."""
    return SENTENCES[code].format(**numbers)
