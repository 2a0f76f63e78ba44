"""Limits that the profiler finds while it measures: what they bound, and what a later run keeps of them."""

import asyncio
import json
from pathlib import Path

from aiohttp import web
from msgspec.structs import replace

from loadline.profiler.batch import BatchTiming
from loadline.profiler.plan import DecodeTask, PrefillTask
from loadline.profiler.record import DecodePoint, Record, Setup
from tests.support.openai_engines import KNOBS, MODEL, openai_engine
from tests.support.profiling import GRID, METRICS, TOKEN, profiled, sse, stub
from tests.support.virtual_time import run_virtual

LARGE_CACHE = METRICS.replace("500", "5000")


class SerialPrefill:
    """Engine without a prefix cache: one prompt after the other, 50 tokens in 1 ms, any batch at 10 ms."""

    def __init__(self) -> None:
        self._computes = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        async with self._computes:
            await asyncio.sleep(len(body["prompt"]) / 50_000)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0.01)
            await response.write(sse(TOKEN))
        await response.write(sse("[DONE]"))
        return response


def test_prompts_that_end_before_others_begin_bound_only_the_batches_of_their_context(tmp_path: Path) -> None:
    async def main() -> None:
        async with stub(SerialPrefill().answer, metrics=LARGE_CACHE) as url:
            run, complete = await profiled(url, tmp_path, batch_max=16)
        assert complete
        assert run.record.limits is not None
        # An output of 32 tokens takes as long as four prompts of 4,056.
        assert run.record.limits.batches_found == {4_072: 4}
        batches = [(task.context_tokens, task.requests) for task in run.record.decodes]
        assert [max(one for one in batches if one[0] == context) for context in (116, 4_072)] == [(116, 16), (4_072, 4)]

    run_virtual(main())


def test_a_disturbed_point_that_the_engine_no_longer_runs_is_not_repeated(tmp_path: Path) -> None:
    async def main() -> None:
        record = Record(tmp_path, Setup(MODEL, 1, GRID, 0.0))
        for requests, itl_ms in ((5, 100.0), (16, 1.0)):
            record.add(DecodePoint(DecodeTask(116, requests), BatchTiming(requests, itl_ms, None)))
        async with asyncio.timeout(600), openai_engine(replace(KNOBS, max_batch_requests=4)) as url:
            run, complete = await profiled(url, tmp_path, batch_max=16)
        assert complete
        assert run.record.limits is not None
        assert run.record.limits.batches_found == {116: 4}
        assert run.record.tries[DecodeTask(116, 5)] == 1

    run_virtual(main())


def test_larger_limits_add_points_and_found_ones_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with openai_engine(context_max=600) as url:
            small, _ = await profiled(url, tmp_path, batch_max=4, context_max=400)
            assert max(task.requests for task in small.record.decodes) == 4
            large, complete = await profiled(url, tmp_path, batch_max=64, context_max=800)
            assert complete
            assert PrefillTask(592) in large.record.prefills
            assert max(task.requests for task in large.record.decodes) == KNOBS.max_batch_requests
            same, _ = await profiled(url, tmp_path, batch_max=128, context_max=1_600)
        assert same.record.tries == large.record.tries
        assert large.record.limits is not None
        assert same.record.limits == replace(large.record.limits, batch_max=128, context_max=1_600)

    run_virtual(main())
