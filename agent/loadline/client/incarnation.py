"""One life of a worker among others of its name: what it says, which drains concern it, whose its key is. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from loadline.client.fence import EpochFence
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import DrainCommand, DrainReply, DrainReport, LoadReport

# Messages may be lost, so `drained` is said again until the process leaves, for ten minutes at most.
DRAINED_INTERVAL_MS: Final = 1_000
DRAINED_REPEATS_MAX: Final = 600


def is_for(record: WorkerRecord, model: str, pool: str, worker: str, incarnation: int) -> bool:
    """Whether a command is for that life or an earlier one.

    If not, another worker of this name listens too, which will answer: in another pool, or started later.
    """
    return (model, pool, worker) == (record.model, record.pool, record.worker) and incarnation <= record.incarnation


class WorkerIncarnation:
    """One life of one worker.

    Args:
        record: What the worker is, in whatever state.
    """

    def __init__(self, record: WorkerRecord) -> None:
        self.drain_id = ""
        """Of the newest drain command that was accepted; empty: none was."""
        self.sequence = 0
        """Of the newest sample; 0: none was reported."""
        self._epochs = EpochFence()
        """Of the leaders whose commands were heard."""
        self._record = record

    def report(self, samples: Sequence[WorkerSample], now_ms: int) -> LoadReport:
        """The samples, numbered; those whose ``timestamp_ms`` is 0 are stamped with Unix time ``now_ms``."""
        record, numbered = self._record, []
        for sample in samples:
            self.sequence += 1
            numbered.append(replace(sample, sequence=self.sequence, timestamp_ms=sample.timestamp_ms or now_ms))
        return LoadReport(record.model, record.pool, record.worker, record.incarnation, numbered)

    def drain_report(self) -> DrainReport:
        """It is empty."""
        record = self._record
        return DrainReport(record.model, record.pool, record.worker, record.incarnation, self.drain_id)

    def answer(self, command: DrainCommand, *, drained: bool) -> DrainReply | None:
        """The answer to a drain command, given whether the worker is empty already; None where another one answers."""
        if not is_for(self._record, command.model, command.pool, command.worker, command.incarnation):
            return None
        refusal = self._refusal(command, drained=drained)
        if not refusal:
            self.drain_id = command.drain_id
        return DrainReply(command.drain_id, accepted=not refusal, detail=refusal)

    def _refusal(self, command: DrainCommand, *, drained: bool) -> str:
        """Why the command is refused; empty: it is not."""
        if command.incarnation < self._record.incarnation:
            return f"gone already: this is incarnation {self._record.incarnation}"
        if not self._epochs.admit(command.epoch):
            return f"a leader of epoch {self._epochs.highest} was heard"
        if drained and command.drain_id != self.drain_id:
            return "drained already"
        return ""

    def is_later(self, value: bytes) -> bool:
        """Whether a record under our name is of a worker that started after us."""
        record = decode_as(WorkerRecord, value, self._record.worker)
        return not isinstance(record, Rejected) and record.incarnation > self._record.incarnation
