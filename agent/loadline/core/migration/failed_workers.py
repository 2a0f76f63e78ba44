"""Records of failed and vanished workers, from which failed domains are derived."""

from typing import Final, Self

from msgspec import Struct

from loadline.core.vocabulary.samples import WorkerRecord

VANISHED_MS: Final = 60_000
"""Time for which a vanished worker counts as failed in its failure domain."""


class FailedWorker(Struct, frozen=True):
    """Failure domains of a failed worker."""

    node: str
    unit: str
    parallel: bool
    """True if it is one of several data-parallel ranks."""

    @classmethod
    def of(cls, record: WorkerRecord) -> Self:
        """Return the failure domains that a worker's record names."""
        return cls(record.node, record.unit, record.data_parallel_size > 1)


class VanishedWorker(Struct):
    """A worker whose lease was lost while it was ready. Times are in ms of the agent's clock."""

    incarnation: int
    node: str
    unit: str
    parallel: bool
    """True if it is one of several data-parallel ranks."""
    vanished_at_ms: int
    seen_at_ms: int
    """Time of its last report. A worker that still reports has only lost its connection to the store."""
