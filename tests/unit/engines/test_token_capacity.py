"""Capacity of a worker in KV tokens."""

import pytest

from loadline.core.engines.token_capacity import (
    ObservedCapacity,
    TokenLimits,
    WorkerKv,
    derived_tokens,
    empty_pool_tokens,
    request_tokens,
    worker_tokens,
)

LIMITS = TokenLimits()
KV, K1 = 100_000.0, 80_000.0


def holds(in_use: float, waiting: float = 0.0, *, learned: float | None = None, derived: float | None = None) -> float:
    observed = ObservedCapacity()
    if learned is not None:
        observed.record(0.0, learned)
    return worker_tokens(WorkerKv(KV, in_use, waiting), LIMITS, observed, 0.0, derived)


def test_memory_always_bounds_the_capacity() -> None:
    assert holds(0.0) == holds(95_000.0) == holds(95_000.0, 9.0) == holds(0.0, learned=90_000.0) == K1


def test_a_queue_reveals_the_capacity() -> None:
    assert holds(50_000.0, 4.0) == K1
    assert holds(50_000.0, 5.0) == 50_000.0


def test_observations_take_precedence_over_flags() -> None:
    assert holds(0.0, learned=60_000.0, derived=70_000.0) == 60_000.0
    assert holds(0.0, derived=70_000.0) == 70_000.0


def test_a_queue_with_a_nearly_empty_cache_is_no_observation() -> None:
    assert holds(16_000.0, 40.0) == K1, "the original would learn 16 % of a cache"
    assert holds(16_000.0, 40.0, derived=70_000.0) == 70_000.0


def test_tokens_held_without_a_queue_disprove_k2() -> None:
    assert holds(50_000.0, learned=50_000.0) == 50_000.0
    assert holds(51_000.0, learned=50_000.0) == holds(51_000.0, derived=50_000.0) == K1
    assert holds(20_000.0, 9.0, learned=10_000.0) == 10_000.0, "with a queue it shows nothing"


def test_observations_are_means_of_ten_by_output_length() -> None:
    observed = ObservedCapacity()
    for tokens in range(20):
        observed.record(99.0, float(tokens))
    observed.record(100.0, 7.0)
    assert (observed.mean(0.0), observed.mean(499.0), observed.mean(500.0)) == (14.5, 7.0, None)


def test_the_derived_capacity_is_bound_by_tokens_or_requests() -> None:
    assert derived_tokens(900.0, 100.0, 1_000.0, 256.0) == pytest.approx(100 * 950.0)
    assert derived_tokens(900.0, 100.0, 1_000.0, 10.0) == pytest.approx(10 * 950.0)
    assert derived_tokens(0.0, 0.0) == 0.0


def test_an_empty_pool_has_at_most_the_capacity_of_a_similar_one() -> None:
    assert empty_pool_tokens(5.0, 9.0, 7.0) == 5.0
    assert empty_pool_tokens(None, 9.0, 7.0) == 7.0
    assert empty_pool_tokens(None, 6.0, 7.0) == empty_pool_tokens(None, 6.0, None) == 6.0


def test_a_prefill_request_needs_its_prompt_only() -> None:
    assert request_tokens("prefill", 500.0, 100.0) == 500.0
    assert request_tokens("decode", 500.0, 100.0) == request_tokens("aggregated", 500.0, 100.0) == 600.0
