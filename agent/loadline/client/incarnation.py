"""One incarnation of a worker among others of its name: its reports, its drains, and its key. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from loadline.client.fence import EpochFence
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import DrainCommand, DrainReply, DrainReport, LoadReport

# Messages may be lost, so `drained` is repeated until the process exits, for at most ten minutes.
DRAINED_INTERVAL_MS: Final = 1_000
DRAINED_REPEATS_MAX: Final = 600


def is_for(record: WorkerRecord, model: str, pool: str, worker: str, incarnation: int) -> bool:
    """Return True if a command is for this incarnation of the worker or an earlier one.

    Otherwise another worker of this name, in another pool or of a later incarnation, answers it.
    """
    return (model, pool, worker) == (record.model, record.pool, record.worker) and incarnation <= record.incarnation


class WorkerIncarnation:
    """State of one incarnation of a worker.

    Args:
        record: Description of the worker, in any state.
        sequence: Sequence after which samples are numbered.
    """

    def __init__(self, record: WorkerRecord, sequence: int = 0) -> None:
        self.drain_id = ""
        """Id of the newest accepted drain command; empty: none."""
        self.sequence = sequence
        """Sequence of the newest sample."""
        self.epochs = EpochFence()
        """Fence of drain commands."""
        self.record = record
        """Description of the worker, in any state."""

    def report(self, samples: Sequence[WorkerSample], now_ms: int) -> LoadReport:
        """Return a report of numbered samples; a ``timestamp_ms`` of 0 is replaced with Unix time ``now_ms``."""
        record, numbered = self.record, []
        for sample in samples:
            self.sequence += 1
            numbered.append(replace(sample, sequence=self.sequence, timestamp_ms=sample.timestamp_ms or now_ms))
        return LoadReport(record.model, record.pool, record.worker, record.incarnation, numbered)

    def drain_report(self) -> DrainReport:
        """Return the report that the worker is empty, to the scaler of the pool in which it started."""
        record = self.record
        return DrainReport(record.model, record.home, record.worker, record.incarnation, self.drain_id)

    def answer(self, command: DrainCommand, *, drained: bool) -> DrainReply | None:
        """Accept or refuse a drain command; ``drained``: the worker is already empty. None: another worker answers."""
        if not is_for(self.record, command.model, command.pool, command.worker, command.incarnation):
            return None
        refusal = self._refusal(command, drained=drained)
        if not refusal:
            self.drain_id = command.drain_id
        return DrainReply(command.drain_id, accepted=not refusal, detail=refusal)

    def _refusal(self, command: DrainCommand, *, drained: bool) -> str:
        """Return the reason to refuse a command; empty: it is accepted."""
        if command.incarnation < self.record.incarnation:
            return f"already gone: this is incarnation {self.record.incarnation}"
        if not self.epochs.admit(command.epoch):
            return f"a command of epoch {self.epochs.highest} was received"
        if drained and command.drain_id != self.drain_id:
            return "already drained"
        return ""

    def is_later(self, value: bytes) -> bool:
        """Return True if a record is of a later incarnation under the same name."""
        record = decode_as(WorkerRecord, value, self.record.worker)
        return not isinstance(record, Rejected) and record.incarnation > self.record.incarnation
