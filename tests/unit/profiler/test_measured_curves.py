"""The profiler recovers the curves of simulated engines, over sockets and in virtual time."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiohttp import web

from loadline.demo.openai.application import EngineApi
from loadline.demo.openai.engine import Generation, PacedEngine
from loadline.profile_files import read_decode, read_prefill
from loadline.profiler.plan import PrefillTask
from loadline.profiler.problems import EngineProblem
from loadline.profiler.record import Record
from loadline.profiler.results import decode_file, decode_sweep, prefill_file, prefill_sweep, usage_factor
from loadline.profiler.run import ProfilerRun
from loadline.sim.profiles import LinearProfile
from tests.support.openai_engines import KNOBS, TIMING, openai_engine
from tests.support.profiling import profiled
from tests.support.virtual_time import run_virtual

PREFILL_MS = 1.1
"""Tolerance of a TTFT: timers have steps of 1 ms."""
ITL_SHARE = 0.02
"""Tolerance of an ITL, of about 30 tokens."""


def with_engine(scenario: Callable[[str], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with openai_engine(**options) as url:
            return await scenario(url)

    return run_virtual(main())


def assert_recovered(record: Record, *, slots: int = KNOBS.max_batch_requests) -> None:
    """Compare sweeps with the simulated engine."""
    prefill, decode = prefill_sweep(record), decode_sweep(record)
    for isl, ttft_ms in zip(prefill.isl_tokens, prefill.ttft_ms, strict=True):
        assert ttft_ms == pytest.approx(TIMING.prefill_ms(isl), abs=PREFILL_MS), isl
    batches = []
    for usage, context, itl_ms in zip(decode.kv_usage, decode.context_tokens, decode.itl_ms, strict=True):
        batches.append(usage * decode.max_kv_tokens / context)
        assert itl_ms == pytest.approx(TIMING.alpha + TIMING.beta * batches[-1], rel=ITL_SHARE), (context, usage)
    assert max(batches) == pytest.approx(slots)
    assert min(batches) == pytest.approx(1)


def test_sweeps_equal_the_engine_s_times(tmp_path: Path) -> None:
    run, complete = with_engine(lambda url: profiled(url, tmp_path, gpus=2, batch_max=16))
    assert complete
    assert_recovered(run.record)
    assert run.record.limits.kv_tokens == KNOBS.kv_blocks_total * KNOBS.block_size_tokens
    assert usage_factor(run.record) == pytest.approx(1.0, abs=0.1)


def test_the_files_are_read_by_planners(tmp_path: Path) -> None:
    run, _ = with_engine(lambda url: profiled(url, tmp_path, gpus=2, batch_max=16))
    prefill, decode = prefill_sweep(run.record), decode_sweep(run.record)
    for name, data in (("p.npz", prefill_file(prefill)), ("d.npz", decode_file(decode))):
        (tmp_path / name).write_bytes(data)
    assert read_prefill(tmp_path / "p.npz") == prefill
    assert read_decode(tmp_path / "d.npz") == decode
    isl, ttft_ms, rate = prefill.isl_tokens[0], prefill.ttft_ms[0], prefill.tokens_per_s_per_gpu[0]
    assert rate == pytest.approx(isl / ttft_ms * 1_000 / 2)


def test_a_batch_larger_than_the_engine_s_is_found_out(tmp_path: Path) -> None:
    run, complete = with_engine(lambda url: profiled(url, tmp_path, batch_max=64))
    assert complete
    assert run.record.limits.batches_found == {116: KNOBS.max_batch_requests}  # 116 is the shortest context
    assert_recovered(run.record)


class EndsEarly(PacedEngine):
    """Engine that ignores ``ignore_eos``."""

    def submit(self, prompt: Sequence[int], tokens_max: int, *, ignore_eos: bool) -> Generation:
        del ignore_eos
        return super().submit(prompt, tokens_max, ignore_eos=False)


def test_outputs_that_end_early_are_continued(tmp_path: Path) -> None:
    run, _ = with_engine(lambda url: profiled(url, tmp_path, batch_max=8), paced=EndsEarly, mean_osl=16, timing=TIMING)
    assert run.measurement.early_ends > 0
    decode = decode_sweep(run.record)
    for usage, context, itl_ms in zip(decode.kv_usage, decode.context_tokens, decode.itl_ms, strict=True):
        batch = usage * decode.max_kv_tokens / context
        # The prompts of continued outputs run in between.
        assert TIMING.alpha < itl_ms < 2 * (TIMING.alpha + TIMING.beta * batch)


class OneTokenMostly(PacedEngine):
    """Engine of which each fifth output has its length, and the others one token."""

    def submit(self, prompt: Sequence[int], tokens_max: int, *, ignore_eos: bool) -> Generation:
        return super().submit(prompt, tokens_max if self._submitted % 5 == 0 else 1, ignore_eos=ignore_eos)


class OneToken(PacedEngine):
    """Engine whose outputs all have one token."""

    def submit(self, prompt: Sequence[int], tokens_max: int, *, ignore_eos: bool) -> Generation:
        del tokens_max
        return super().submit(prompt, 1, ignore_eos=ignore_eos)


def test_some_outputs_of_one_token_in_a_row_do_not_end_a_run(tmp_path: Path) -> None:
    run, complete = with_engine(lambda url: profiled(url, tmp_path, batch_max=1), paced=OneTokenMostly, timing=TIMING)
    assert complete
    assert run.measurement.early_ends > 0


def test_a_model_whose_outputs_all_have_one_token_ends_a_run(tmp_path: Path) -> None:
    with pytest.raises(EngineProblem, match="the model ends its outputs after one token"):
        with_engine(lambda url: profiled(url, tmp_path, batch_max=1), paced=OneToken, timing=TIMING)


class ChatOnly(EngineApi):
    """API without completions."""

    async def _complete(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)


def test_an_engine_with_chats_only_gets_prompts_of_text(tmp_path: Path) -> None:
    run, _ = with_engine(lambda url: profiled(url, tmp_path, batch_max=16), api=ChatOnly)
    assert_recovered(run.record)


def test_a_shared_prefix_is_not_computed_again(tmp_path: Path) -> None:
    run, _ = with_engine(lambda url: profiled(url, tmp_path, reuse=0.5, batch_max=2))
    prefill = prefill_sweep(run.record)
    for isl, ttft_ms in zip(prefill.isl_tokens, prefill.ttft_ms, strict=True):
        computed = isl - int(isl * 0.5) // KNOBS.block_size_tokens * KNOBS.block_size_tokens
        assert ttft_ms == pytest.approx(TIMING.prefill_ms(computed), abs=PREFILL_MS)


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    async def scenario(url: str) -> tuple[int, ProfilerRun]:
        first, complete = await profiled(url, tmp_path, seconds=0.0, batch_max=16)
        assert not complete
        with (tmp_path / "measurements.jsonl").open("a") as file:
            file.write('{"kind":"prefill","ta')  # killed during a write
        second, complete = await profiled(url, tmp_path, batch_max=16)
        assert complete
        return first.record.count, second

    count, run = with_engine(scenario)
    assert 0 < count < run.record.count
    assert_recovered(run.record)
    assert Record(tmp_path, run.record.setup).count == run.record.count
    lines = (tmp_path / "measurements.jsonl").read_text().splitlines()
    assert sum('"ttft_ms"' in line for line in lines) == len(run.record.prefills)  # none was measured twice


def test_another_size_of_the_cache_needs_no_new_measurement(tmp_path: Path) -> None:
    async def scenario(url: str) -> tuple[ProfilerRun, ProfilerRun]:
        first, _ = await profiled(url, tmp_path, batch_max=2, kv_tokens=20_000)
        usages = decode_sweep(first.record).kv_usage
        second, _ = await profiled(url, tmp_path, batch_max=2, kv_tokens=40_000)
        decode = decode_sweep(second.record)
        assert decode.max_kv_tokens == 40_000
        assert decode.kv_usage == pytest.approx([usage / 2 for usage in usages])
        return first, second

    first, second = with_engine(scenario)
    assert second.record.tries == first.record.tries
    assert Record(tmp_path, second.record.setup).limits == second.record.limits


def test_a_smaller_cache_leaves_out_the_batches_that_exceed_it(tmp_path: Path) -> None:
    async def scenario(url: str) -> ProfilerRun:
        await profiled(url, tmp_path, batch_max=16)
        return (await profiled(url, tmp_path, batch_max=16, kv_tokens=1_000))[0]

    run = with_engine(scenario)
    decode = decode_sweep(run.record)
    assert decode.max_kv_tokens == 1_000
    assert max(decode.kv_usage) > 0.9
    assert len(decode.kv_usage) < len(run.record.decodes)
    for usage, context, itl_ms in zip(decode.kv_usage, decode.context_tokens, decode.itl_ms, strict=True):
        batch = usage * 1_000 / context
        assert itl_ms == pytest.approx(TIMING.alpha + TIMING.beta * batch, rel=ITL_SHARE), (context, usage)


def test_progress_has_rate_and_end(tmp_path: Path) -> None:
    seen: list[Any] = []
    with_engine(lambda url: profiled(url, tmp_path, on_progress=seen.append))
    assert seen[0].left_s is None
    assert seen[-1].measured == seen[-1].planned
    assert seen[-1].left_s == 0
    assert 0 < seen[-2].left_s < seen[-2].elapsed_s


class Disturbed(LinearProfile, frozen=True):
    """Timing that is disturbed during the first measurement of prompts of 543 tokens."""

    passes: ClassVar[list[float]] = []

    def prefill_ms(self, tokens: float) -> float:
        self.passes.append(tokens)
        disturbed = tokens == 543 and self.passes.count(543) <= 2  # one to warm up, and one
        return super().prefill_ms(tokens) * (20.0 if disturbed else 1.0)


def test_points_that_were_disturbed_are_measured_again(tmp_path: Path) -> None:
    timing = Disturbed(TIMING.alpha, TIMING.beta, TIMING.gamma, TIMING.delta)
    run, _ = with_engine(lambda url: profiled(url, tmp_path, batch_max=16), timing=timing)
    assert {task for task, tries in run.record.tries.items() if tries > 1} == {PrefillTask(543)}
    assert_recovered(run.record)
    assert Record(tmp_path, run.record.setup).prefills == run.record.prefills
