"""Estimates of what engines do not export; reported figures are never replaced."""

from typing import Any

import pytest

from loadline.core.fleet import estimates
from loadline.core.fleet.estimates import NOMINAL_BLOCKS
from loadline.core.fleet.worker import WorkerState
from loadline.core.migration.measures import (
    BATCH,
    DECODING,
    DECODING_TOKENS,
    KV_NEEDED,
    KV_TOTAL,
    PREFILL_TOKENS,
    measures_of,
)
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role


def record(role: Role = "aggregated", **fields: Any) -> WorkerRecord:
    return WorkerRecord("m", "p", "w", role, 1, **fields)


def sample(**fields: Any) -> WorkerSample:
    return WorkerSample(1, 0, **fields)


CACHE: dict[str, Any] = {"kv_blocks_total": 1_000, "block_size_tokens": 16}


@pytest.mark.parametrize(
    ("reported", "registered", "used", "total", "tokens"),
    [
        ({"kv_usage_ratio": 0.25}, CACHE, 250, 1_000, 4_000),
        ({"kv_usage_ratio": 0.25, "kv_blocks_total": 400}, CACHE, 100, 400, 1_600),
        ({"kv_usage_ratio": 0.25}, {}, 0.25 * NOMINAL_BLOCKS, NOMINAL_BLOCKS, None),
        ({"kv_usage_ratio": 0.25}, {"kv_blocks_total": 1_000}, 250, 1_000, None),
        ({"kv_usage_ratio": 0.9, "kv_blocks_used": 250}, CACHE, 250, 1_000, 4_000),
        ({"kv_usage_ratio": 0.9, "kv_blocks_used": 250}, {}, 250, 0, None),
        ({}, CACHE, None, 1_000, None),
    ],
)
def test_blocks_and_tokens_follow_from_kv_usage_and_the_size_of_the_cache(
    reported: dict[str, Any], registered: dict[str, Any], used: float | None, total: int, tokens: float | None
) -> None:
    one, of = sample(**reported), record(**registered)
    assert estimates.blocks_used(one, of) == used
    assert estimates.blocks_total(one, of) == total
    assert estimates.kv_tokens_used(one, of) == tokens


@pytest.mark.parametrize(
    ("role", "reported", "expected"),
    [
        ("aggregated", {"waiting_requests": 3, "running_requests": 8, "isl_tokens": 200.0}, (600, 0)),
        ("prefill", {"waiting_requests": 3, "running_requests": 1, "isl_tokens": 200.0}, (600, 100)),
        ("decode", {"waiting_requests": 3, "running_requests": 8, "isl_tokens": 200.0}, (0, 0)),
        ("aggregated", {"waiting_requests": 3}, (300, 0)),
        ("aggregated", {"waiting_requests": 3, "queued_prefill_tokens": 7}, (7, 0)),
        ("aggregated", {"waiting_requests": 3, "active_prefill_tokens": 7}, (0, 7)),
        ("aggregated", {"isl_tokens": 200.0}, None),
        ("prefill", {"waiting_requests": 0, "isl_tokens": 200.0}, None),
    ],
)
def test_waiting_requests_need_the_mean_prompt_each(
    role: Role, reported: dict[str, Any], expected: tuple[float, float] | None
) -> None:
    assert estimates.prompt_tokens(sample(**reported), record(role), isl_tokens=100.0) == expected


def test_requests_of_unknown_length_are_unknown_tokens_and_no_requests_are_none() -> None:
    assert estimates.prompt_tokens(sample(waiting_requests=2), record()) is None
    assert estimates.prompt_tokens(sample(waiting_requests=0), record()) == (0, 0)


def test_requests_that_wait_at_a_decode_worker_bring_their_prompts() -> None:
    waiting = sample(waiting_requests=2, isl_tokens=300.0)
    assert estimates.tokens_to_decode(waiting, record("decode")) == 600
    assert estimates.tokens_to_decode(waiting, record("aggregated")) == 0
    reported = sample(waiting_requests=2, isl_tokens=300.0, waiting_to_decode_tokens=50)
    assert estimates.tokens_to_decode(reported, record("decode")) == 50


def test_a_decode_iteration_takes_the_mean_itl_of_the_running_requests() -> None:
    plain = sample(running_requests=12, itl_ms=20.0)
    assert list(estimates.decode_iterations(plain)) == [(12, 20.0)]
    assert list(estimates.decode_iterations(sample(running_requests=12))) == []
    reported = sample(running_requests=12, itl_ms=20.0, iteration_ms=15.0, decode_batch_requests=10)
    assert list(estimates.decode_iterations(reported)) == [(10, 15.0)]
    mixed = sample(itl_ms=20.0, iteration_ms=15.0, decode_batch_requests=10, active_prefill_tokens=100)
    assert list(estimates.decode_iterations(mixed)) == []


def test_a_prefill_pass_takes_the_ttft_for_the_prompts_ahead_and_its_own() -> None:
    prefill = sample(waiting_requests=1, running_requests=1, isl_tokens=200.0, ttft_ms=100.0)
    assert list(estimates.prefill_passes(prefill, record("prefill"))) == [(500, 100.0), (1, 0.2)]
    idle = sample(waiting_requests=0, running_requests=4, isl_tokens=200.0, ttft_ms=100.0)
    assert list(estimates.prefill_passes(idle, record())) == [(200, 100.0), (1, 0.5)]


def test_a_ttft_with_a_queue_for_batch_slots_is_no_prefill_pass() -> None:
    queue = sample(waiting_requests=9, running_requests=4, isl_tokens=200.0, ttft_ms=4_000.0)
    assert list(estimates.prefill_passes(queue, record())) == []


def test_reported_iterations_with_prompts_are_prefill_passes_of_at_most_a_batch() -> None:
    reported = sample(iteration_ms=40.0, active_prefill_tokens=9_000, isl_tokens=200.0, ttft_ms=4_000.0)
    assert list(estimates.prefill_passes(reported, record(max_batched_tokens=8_192))) == [(8_192, 40.0)]


@pytest.mark.parametrize(("role", "needed", "prefill"), [("aggregated", 4_600, 600), ("decode", 4_600, 0)])
def test_migration_measures_a_plain_engine_like_one_that_reports_tokens(role: Role, needed: int, prefill: int) -> None:
    plain = sample(kv_usage_ratio=0.25, waiting_requests=3, running_requests=8, isl_tokens=200.0, migration_slots_in=4)
    worker = WorkerState(record(role, **CACHE), 5, registered_at_ms=0, latest=[plain])
    found = measures_of(worker)
    assert found is not None
    assert (found[KV_NEEDED], found[KV_TOTAL], found[PREFILL_TOKENS]) == (needed, 16_000, prefill)
    assert (found[DECODING], found[DECODING_TOKENS], found[BATCH]) == (8, 4_000, 11)
