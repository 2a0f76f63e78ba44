"""Keys by which Dynamo's planner and its ``VirtualConnectorClient`` exchange scaling decisions; pure.

The planner writes two counts and the ID of its decision. The client applies the counts and writes the ID back, which
acknowledges the decision. All values are decimal strings, and -1 stands for a key that is not set.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role
from loadline.ports import Compare, StoreEntry, Write

UNSET: Final = -1
PREFILL: Final = "num_prefill_workers"
DECODE: Final = "num_decode_workers"
DECISION: Final = "decision_id"
ACKNOWLEDGED: Final = "scaled_decision_id"
COUNT_OF_ROLE: Final[dict[Role, str]] = {"prefill": PREFILL, "decode": DECODE, "aggregated": DECODE}
"""Count of each role that Dynamo knows; its planner counts aggregated workers as decode workers, too."""

# Dynamo reads 64-bit integers; a longer number is an error there.
_NUMBER: Final = re.compile(rb"[0-9]{1,18}")

Step = Literal["write", "wait", "done"]


def prefix_of(namespace: str) -> str:
    """Return the prefix of the keys of a Dynamo namespace."""
    return f"v1/{namespace}/planner/"


class Counts(NamedTuple):
    """Workers that a decision asks for; None: it does not change this role."""

    prefill: int | None
    decode: int | None


class ConnectorState(Struct, frozen=True):
    """Contents of the keys."""

    prefill: int = UNSET
    decode: int = UNSET
    decision: int = UNSET
    acknowledged: int = UNSET
    revisions: Mapping[str, int] = {}
    """Mod revision of each key, by its last part; 0 stands for a key that does not exist."""

    @property
    def ready(self) -> bool:
        """True if no decision is unacknowledged."""
        return self.decision == UNSET or self.acknowledged >= self.decision

    def has(self, counts: Counts) -> bool:
        """Return True if these counts were announced.

        A count that is newer than the decision was written by a planner that died before it wrote the ID: no client
        wakes for it.
        """
        stated = (counts.prefill in {None, self.prefill}) and (counts.decode in {None, self.decode})
        announced = self.revisions.get(DECISION, 0) >= max(self.revisions.get(key, 0) for key in (PREFILL, DECODE))
        return stated and announced and self.decision != UNSET


def read_state(prefix: str, entries: Mapping[str, StoreEntry]) -> ConnectorState:
    """Return the contents of the keys under a prefix; a value that is no number counts as not set."""
    revisions = {key: entries[prefix + key].mod_revision for key in _KEYS if prefix + key in entries}
    prefill, decode, decision, acknowledged = (_number(entries.get(prefix + key)) for key in _KEYS)
    return ConnectorState(prefill, decode, decision, acknowledged, revisions)


def next_step(state: ConnectorState, counts: Counts, *, timed_out: bool) -> Step:
    """Return the next step towards counts.

    Args:
        state: Contents of the keys.
        counts: Workers that are asked for.
        timed_out: True if the time for acknowledging the decision in ``state`` has passed: it may be replaced.
    """
    if state.has(counts):
        return "done" if state.ready else "wait"
    return "write" if state.ready or timed_out else "wait"


def announcement(prefix: str, state: ConnectorState, counts: Counts) -> tuple[list[Compare], list[Write]]:
    """Return the transaction that announces counts as the next decision, if the keys are as in ``state``.

    The ID is above those of all decisions and acknowledgements, so that no earlier acknowledgement applies to it.
    """
    values = {PREFILL: counts.prefill, DECODE: counts.decode, DECISION: max(state.decision, state.acknowledged) + 1}
    writes = [Write(prefix + key, str(value).encode()) for key, value in values.items() if value is not None]
    return _unchanged(prefix, state), writes


def repetition(prefix: str, state: ConnectorState) -> tuple[list[Compare], list[Write]]:
    """Return the transaction that writes the ID of the decision once more.

    Dynamo 1.6.1's client returns from ``wait`` for any unacknowledged decision, but that of 1.0.1 for a write only, so
    it misses those made before it waits.
    """
    return _unchanged(prefix, state), [Write(prefix + DECISION, str(state.decision).encode())]


_KEYS: Final = (PREFILL, DECODE, DECISION, ACKNOWLEDGED)


def _unchanged(prefix: str, state: ConnectorState) -> list[Compare]:
    return [Compare(prefix + key, "mod", state.revisions.get(key, 0)) for key in _KEYS]


def _number(entry: StoreEntry | None) -> int:
    return int(entry.value) if entry is not None and _NUMBER.fullmatch(entry.value) else UNSET
