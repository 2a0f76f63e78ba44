"""Measurements of one engine: the TTFT of a prompt, and the ITL of a batch."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, Final, TypeVar

from loadline.profiler.batch import BatchTiming, batch_timing, running_together
from loadline.profiler.endpoint import EngineEndpoint
from loadline.profiler.plan import DecodeTask, PrefillTask
from loadline.profiler.problems import EngineProblem
from loadline.profiler.prompts import Prompt, PromptSource
from loadline.profiler.record import PrefillPoint
from loadline.profiler.stream import StreamTiming
from loadline.profiler.watch import EngineWatch

T = TypeVar("T")
_LONGER: Final = 4
"""Factor of the output if the requests of a batch did not run together long enough."""
_LONG_ENOUGH_S: Final = 2.0
"""Time of batches after which none is repeated: at 20 ms a token, a batch of 128 tokens each."""
_STALLED_MAX: Final = 12
"""Consecutive outputs of one token after which a model is given up. Of outputs of 16 tokens on average, one of 4,096
requests has three in a row by chance, and a batch may have 256."""


class Measurement:
    """Measurements of a model.

    Args:
        endpoint: The engine.
        model: The model.
        prompts: Source of prompts.
    """

    def __init__(self, endpoint: EngineEndpoint, model: str, prompts: PromptSource) -> None:
        self.early_ends = 0
        """Outputs that the model ended before their length."""
        self._endpoint = endpoint
        self._model = model
        self._prompts = prompts
        self._watch = EngineWatch(endpoint)

    async def prefill(self, task: PrefillTask, repeats: int, reuse: float) -> PrefillPoint:
        """Return the median TTFT of single prompts, after one that is not measured.

        Args:
            task: The length.
            repeats: Number of measured prompts.
            reuse: Fraction of each prompt that the prefix cache has.
        """
        shared, timings = int(task.isl_tokens * reuse), []
        for _ in range(repeats + 1):
            fresh = self._prompts.partly_shared(task.isl_tokens, shared)
            timings.append(await self._stream(fresh, 1))
        measured = timings[1:]
        lengths = [one.prompt_tokens or task.isl_tokens for one in measured]
        return PrefillPoint(task, sum(lengths) / len(lengths), median(one.ttft_ms for one in measured))

    async def decode(self, task: DecodeTask, osl_tokens: int, osl_max: int, repeats: int) -> BatchTiming | int:
        """Return the timing of a batch, or how many requests the engine runs at a time if it does not run all.

        The prompts are computed before, so that with a prefix cache no prefill delays the batch. A short batch is
        repeated, and the median counts.

        Args:
            task: Context and number of requests.
            osl_tokens: Output of each.
            osl_max: Largest output that fits into context and cache.
            repeats: Maximum number of batches.
        """
        prompts = [self._prompts.fresh(task.context_tokens - osl_tokens // 2) for _ in range(task.requests)]
        async with _running(self._stream(prompt, 1) for prompt in prompts) as tasks:
            await asyncio.gather(*tasks)
        began_s, timings = self._now_s, list[BatchTiming]()
        while len(timings) < repeats and (not timings or self._now_s - began_s < _LONG_ENOUGH_S):
            found = await self._batch(prompts, osl_tokens)
            if isinstance(found, int) and osl_max > osl_tokens:
                # Without a prefix cache, the first requests may have ended before the last ones began.
                found = await self._batch(prompts, min(osl_tokens * _LONGER, osl_max))
            if isinstance(found, int):
                return found
            timings.append(found)
        return sorted(timings, key=lambda one: one.itl_ms)[len(timings) // 2]

    async def _batch(self, prompts: Sequence[Prompt], osl_tokens: int) -> BatchTiming | int:
        """Return the timing of a batch; or, once one request ends before all began, the number of those that had."""
        begun = 0

        def on_first() -> None:
            nonlocal begun
            begun += 1

        async with (
            self._watch.observe() as usages,
            _running(self._slot(one, osl_tokens, on_first) for one in prompts) as tasks,
        ):
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if begun < len(tasks) and not any(task.exception() for task in done):
                return begun
            slots = await asyncio.gather(*tasks)
        return batch_timing(slots, usages) or running_together(slots)

    async def _slot(self, prompt: Prompt, osl_tokens: int, on_first: Callable[[], None]) -> list[StreamTiming]:
        """Stream until the output has its length; what a model ends early continues with a longer prompt."""
        streams: list[StreamTiming] = []
        left, stalled = osl_tokens, 0
        while left > 0:
            begins = on_first if not streams else lambda: None
            streams.append(await self._endpoint.generate(self._model, prompt, left, begins))
            got = streams[-1].output_tokens
            left -= got
            stalled = stalled + 1 if got == 1 and left > 0 else 0
            if stalled == _STALLED_MAX:
                raise EngineProblem(
                    f"{self._endpoint.name}: the model ends its outputs after one token. "
                    "Profile an engine that accepts ignore_eos, or another model."
                )
            if left > 0:
                self.early_ends += 1
                prompt = self._prompts.longer(prompt, got)
        return streams

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _stream(self, prompt: Prompt, tokens: int) -> Coroutine[Any, Any, StreamTiming]:
        return self._endpoint.generate(self._model, prompt, tokens)


@asynccontextmanager
async def _running(calls: Iterable[Coroutine[Any, Any, T]]) -> AsyncIterator[list[asyncio.Task[T]]]:
    """Run calls at the same time, and end those that still run at the end of the context."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
