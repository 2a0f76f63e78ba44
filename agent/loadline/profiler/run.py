"""Run over all points of one engine, until the end or a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from loadline.profiler.batch import BatchTiming
from loadline.profiler.endpoint import EngineEndpoint
from loadline.profiler.measure import Measurement
from loadline.profiler.plan import DecodeTask, Limits, PrefillTask, Task, plan
from loadline.profiler.problems import ContextTooLong, EngineProblem, EngineUnavailable
from loadline.profiler.prompts import PromptSource
from loadline.profiler.record import DecodePoint, LimitsFound, Record

T = TypeVar("T")
_RETRIES_S: Final = (1.0, 2.0, 4.0)
"""Waits before a measurement is repeated because the engine did not answer."""

_TRIES_MAX: Final = 3
"""Measurements of a point that is slower than a harder one."""
_OUTPUTS_MIN: Final = 3
"""Outputs that must fit into the context, so that contexts differ."""


class RunProgress(Struct, frozen=True):
    """Progress of a run; times in seconds."""

    measured: int
    planned: int
    elapsed_s: float
    measured_now: int
    """Points of this run, without those of an interrupted one."""

    @property
    def left_s(self) -> float | None:
        """Expected time to the end; None before the first point."""
        left = self.planned - self.measured
        return left * self.elapsed_s / self.measured_now if self.measured_now else None


class ProfilerRun:
    """Measurements of one engine that are missing in a record.

    Args:
        endpoint: The engine.
        prompts: Source of prompts.
        record: Measurements so far.
        limits: Limits of the engine; the record may have found lower ones.
    """

    def __init__(self, endpoint: EngineEndpoint, prompts: PromptSource, record: Record, limits: Limits) -> None:
        self.measurement = Measurement(endpoint, record.setup.model, prompts)
        self._endpoint = endpoint
        self.record = record
        self._limits = limits
        if (known := record.limits) is not None:
            self._limits = replace(limits, context_found=known.context_found, batches_found=known.batches_found)

    async def run(self, on_progress: Callable[[RunProgress], None], seconds: float | None = None) -> bool:
        """Measure what is missing, and again what was disturbed; return False if points are missing after ``seconds``.

        Args:
            on_progress: Called after each point.
            seconds: Time after which only points without which there is no sweep are measured; None: no bound.

        Raises:
            EngineProblem: The engine cannot be measured further.
        """
        self._check_room()
        if self.record.limits != self._limits:
            self._limit(self._limits)
        clock, measured_before = asyncio.get_running_loop().time, self.record.count
        began_s = clock()
        while True:
            tasks, required = plan(self.record.setup.grid, self._limits)
            missing = [task for task in tasks if not self.record.has(task)]
            # Tasks beyond the plan exceed limits found since; without a result their tries would not rise.
            outliers = [task for task in self.record.outliers() if task in tasks]
            again = [task for task in outliers if self.record.tries[task] < _TRIES_MAX]
            left = missing or again
            planned, now = len(tasks) + len(again), self.record.count - measured_before
            on_progress(RunProgress(planned - len(missing) - len(again), planned, clock() - began_s, now))
            if not left:
                return True
            if seconds is not None and clock() - began_s >= seconds and left[0] not in tasks[:required]:
                return not missing
            await self._measure(left[0])

    def _check_room(self) -> None:
        room, osl = min(self._limits.context_tokens, self._limits.kv_tokens), self.record.setup.grid.osl_tokens
        if room < osl * _OUTPUTS_MIN:
            problem = f"a context of {room} tokens is too short for outputs of {osl}"
            raise EngineProblem(
                f"{self._endpoint.name}: {problem}. Profile an engine with {osl * _OUTPUTS_MIN} or more."
            )

    async def _measure(self, task: Task) -> None:
        """Measure a point, or record the limit of the engine that it exceeds."""
        try:
            if isinstance(task, PrefillTask):
                setup = self.record.setup
                self.record.add(
                    await retried(lambda: self.measurement.prefill(task, setup.grid.repeats, setup.prefix_reuse))
                )
            else:
                await self._measure_batch(task)
        except ContextTooLong as error:
            # A batch holds its output besides; a limit that excludes nothing would be tried for ever.
            if error.context_max is None or error.context_max >= self._limits.context_tokens:
                raise
            self._limit(replace(self._limits, context_found=error.context_max))

    async def _measure_batch(self, task: DecodeTask) -> None:
        found = await self._batch(task)
        if not isinstance(found, int):
            self.record.add(DecodePoint(task, found))
        elif task.requests > 1:
            # Without a prefix cache, prompts of a long context end before others begin, though slots are free.
            fewer = {task.context_tokens: min(found, task.requests - 1)}
            self._limit(replace(self._limits, batches_found=self._limits.batches_found | fewer))
        else:
            problem = f"an output of {self.record.setup.grid.osl_tokens} tokens has too few chunks"
            raise EngineProblem(f"{self._endpoint.name}: {problem}. See the engine's log.")

    async def _batch(self, task: DecodeTask) -> BatchTiming | int:
        grid, limits = self.record.setup.grid, self._limits
        osl, block = grid.osl_tokens, limits.block_tokens
        held_max = min(limits.context_tokens, limits.kv_tokens // task.requests // block * block)
        osl_max = held_max - (task.context_tokens - osl // 2)
        return await retried(lambda: self.measurement.decode(task, osl, osl_max, grid.repeats))

    def _limit(self, limits: Limits) -> None:
        self._limits = limits
        self._check_room()
        self.record.add(LimitsFound(limits))


async def retried(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call, and again if the engine was unavailable.

    Raises:
        EngineUnavailable: It was so four times.
    """
    for wait_s in _RETRIES_S:
        try:
            return await call()
        except EngineUnavailable:
            await asyncio.sleep(wait_s)
    return await call()
