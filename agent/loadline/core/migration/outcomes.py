"""Outcomes of pairs of workers and of policies: a closed list of codes, with a sentence for each."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.migrations import MigrationOrder, MigrationRule
from loadline.core.vocabulary.templates import fill_in


class MigrationCode(StrEnum):
    """Outcome of a pair of workers or of a policy. Append only: programs match on the values."""

    PLANNED = "planned"
    ADVISED = "advised"
    # reasons why a pair migrates nothing
    GAP_TOO_SMALL = "gap_too_small"
    NO_ROOM = "no_room"
    FINISHES_SOONER = "finishes_sooner"
    WORKER_SOON_READY = "worker_soon_ready"
    MIGRATIONS_MAX = "migrations_max"
    IN_FLIGHT = "in_flight"
    # reasons why a policy has no pair
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
    MigrationCode.PLANNED: "a migration of up to {requests:g} requests, about {tokens:.0f} tokens, was commanded",
    MigrationCode.ADVISED: (
        "up to {requests:g} requests, about {tokens:.0f} tokens, would be migrated, but no_operation is set"
    ),
    MigrationCode.GAP_TOO_SMALL: "the loads {source:.3g} and {destination:.3g} differ by less than {gap_min:g}",
    MigrationCode.NO_ROOM: "a request has {tokens:.0f} tokens, the destination has room for {room:.0f}",
    MigrationCode.FINISHES_SOONER: (
        "copying a request takes {copy_ms:.0f} ms, and it completes in {left_ms:.0f} ms on average"
    ),
    MigrationCode.WORKER_SOON_READY: "a pending worker is ready in {left_ms:time}",
    MigrationCode.MIGRATIONS_MAX: "{requests:g} requests are in migration, which is the limit",
    MigrationCode.IN_FLIGHT: "a migration between the two workers is in flight",
    MigrationCode.NO_SOURCE: "no worker needs to send requests",
    MigrationCode.NO_DESTINATION: "no worker can receive requests",
    MigrationCode.TOO_SOON: "a worker could have been emptied for {age_ms:time}, {needed_ms:time} are required",
    MigrationCode.NOT_EMPTIED: "the other workers have room for {room:g} of the {requests:g} requests of the worker",
    MigrationCode.TOO_MANY_SILENT: (
        "{silent:g} of {workers:g} workers are silent, so the connection is suspected, not the workers"
    ),
    MigrationCode.LOAD_UNKNOWN: "{unknown:g} of {workers:g} workers do not report what the load metric needs",
    MigrationCode.NO_SLOTS: (
        "{workers:g} workers need to send requests, and none can: their slots are in use, or they refused a command"
    ),
    MigrationCode.PAUSED: "the model is paused",
    MigrationCode.GIVEN_WORK: (
        "every worker that could be emptied was assigned a request within the last {within_ms:time}"
    ),
}
"""Sentence of each code: a format string over its numbers."""


class MigrationAmount(Struct, frozen=True):
    """Amount to migrate between two workers."""

    rule: MigrationRule
    order: MigrationOrder
    value: float
    requests: int
    """Maximum requests, bounded by free slots."""
    tokens: int
    """Tokens that are expected to migrate."""
    tokens_max: int | None = None
    """Maximum tokens, the free KV cache of the destination; None if unknown."""


class NotPlanned(Struct, frozen=True):
    """Reason why a pair or a policy migrates nothing."""

    code: MigrationCode
    numbers: dict[str, float] = {}

    @classmethod
    def of(cls, code: MigrationCode, **numbers: float) -> "NotPlanned":
        """Return a reason with its numbers as floats, so that a round trip through the journal leaves it unchanged."""
        return cls(code, {name: float(value) for name, value in numbers.items()})


class PairReport(Struct, frozen=True):
    """Outcome of a pair of workers."""

    source: str
    destination: str
    code: MigrationCode
    numbers: dict[str, float] = {}


class PolicyReport(Struct, frozen=True):
    """Last noteworthy outcome of a policy, with the number of its sources and destinations, and its pairs."""

    model: str
    policy: str
    group: str
    at_ms: int
    code: MigrationCode
    """``planned`` (or ``advised``) if a pair was, otherwise the reason why none was."""
    numbers: dict[str, float] = {}
    sources: int = 0
    destinations: int = 0
    pairs: tuple[PairReport, ...] = ()


def sentence(code: MigrationCode, numbers: dict[str, float]) -> str:
    """Return the sentence of a code with its numbers."""
    return fill_in(SENTENCES[code], numbers)
