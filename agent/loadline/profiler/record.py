"""Measurements of one engine in a file that an interrupted run continues: one JSON line each, the setup first."""

from collections import Counter, defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from loadline.errors import DataError
from loadline.profiler.batch import BatchTiming
from loadline.profiler.plan import DecodeTask, Grid, Limits, PrefillTask, Task

FILE: Final = "measurements.jsonl"
_BYTES_MAX: Final = 16 * 2**20


class Setup(Struct, frozen=True, tag="setup", tag_field="kind"):
    """Conditions of all measurements of a file."""

    model: str
    gpus: int
    grid: Grid
    prefix_reuse: float


class LimitsFound(Struct, frozen=True, tag="limits", tag_field="kind"):
    """Limits of the engine, given and found; the last ones of a file count."""

    limits: Limits


class PrefillPoint(Struct, frozen=True, tag="prefill", tag_field="kind"):
    """TTFT of prompts of one length."""

    task: PrefillTask
    isl_tokens: float
    """Length as the engine counts it."""
    ttft_ms: float


class DecodePoint(Struct, frozen=True, tag="decode", tag_field="kind"):
    """ITL of a batch."""

    task: DecodeTask
    timing: BatchTiming


Line = Setup | LimitsFound | PrefillPoint | DecodePoint
_OUTLIER: Final = 1.1
"""Factor above the time of a harder task from which a measurement is taken for disturbed."""
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Line)


class Record:
    """Measurements in the order in which they were made.

    Args:
        folder: Folder of the file, which is created.
        setup: Conditions of this run.

    Raises:
        DataError: The file was written under other conditions, or is none of measurements.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.path = folder / FILE
        """File of the measurements."""
        self.setup = setup
        self.limits: Limits | None = None
        self.prefills: dict[PrefillTask, PrefillPoint] = {}
        self.decodes: dict[DecodeTask, DecodePoint] = {}
        self.tries: Counter[Task] = Counter()
        """Number of measurements of each task, of which the fastest counts."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._continue()
        else:
            self._write(setup)

    def has(self, task: Task) -> bool:
        """Return True if a task was measured."""
        return task in self.prefills or task in self.decodes

    @property
    def count(self) -> int:
        """Number of measured tasks."""
        return len(self.prefills) + len(self.decodes)

    def outliers(self) -> list[Task]:
        """Return the tasks that took longer than one of a longer prompt or of a larger batch of the same context."""
        rows: dict[int, list[tuple[Task, float]]] = defaultdict(list)
        for prompt in sorted(self.prefills, key=lambda one: one.isl_tokens):
            rows[0].append((prompt, self.prefills[prompt].ttft_ms))
        for task in sorted(self.decodes, key=lambda one: one.requests):
            rows[task.context_tokens].append((task, self.decodes[task].timing.itl_ms))
        return [task for row in rows.values() for task in _slower_than_later(row)]

    def add(self, line: LimitsFound | PrefillPoint | DecodePoint) -> None:
        """Append a measurement to the file."""
        self._keep(line)
        self._write(line)

    def _continue(self) -> None:
        remedy = "Name another folder, or remove this one"
        data = self.path.read_bytes()[:_BYTES_MAX]
        whole = data[: data.rfind(b"\n") + 1]  # a killed run may leave a part of a line
        try:
            lines = [_DECODER.decode(line) for line in whole.splitlines()]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: no measurements: {error}. {remedy}.") from error
        if whole != data:
            self.path.write_bytes(whole)
        if not lines:
            self._write(self.setup)
        elif lines[0] != self.setup:
            raise DataError(f"{self.path}: measured another model, or with other options. {remedy}.")
        for line in lines[1:]:
            self._keep(line)

    def _keep(self, line: Line) -> None:
        if isinstance(line, LimitsFound):
            self.limits = line.limits
        elif isinstance(line, PrefillPoint):
            self.tries[line.task] += 1
            self.prefills[line.task] = min(line, self.prefills.get(line.task, line), key=lambda one: one.ttft_ms)
        elif isinstance(line, DecodePoint):
            self.tries[line.task] += 1
            self.decodes[line.task] = min(line, self.decodes.get(line.task, line), key=lambda one: one.timing.itl_ms)

    def _write(self, line: Line) -> None:
        with self.path.open("ab") as file:
            file.write(_ENCODER.encode(line) + b"\n")


def _slower_than_later(row: list[tuple[Task, float]]) -> list[Task]:
    later_ms = [*accumulate((time_ms for _, time_ms in reversed(row)), min)][::-1]
    return [task for (task, time_ms), least_ms in zip(row, later_ms, strict=True) if time_ms > _OUTLIER * least_ms]
