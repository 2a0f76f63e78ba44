"""What a worker can hold in KV tokens."""

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


def test_memory_bounds_it_always() -> None:
    assert holds(0.0) == holds(95_000.0) == holds(95_000.0, 9.0) == holds(0.0, learned=90_000.0) == K1


def test_a_queue_says_how_much_it_can_hold() -> None:
    assert holds(50_000.0, 4.0) == K1
    assert holds(50_000.0, 5.0) == 50_000.0


def test_what_was_observed_goes_before_what_flags_say() -> None:
    assert holds(0.0, learned=60_000.0, derived=70_000.0) == 60_000.0
    assert holds(0.0, derived=70_000.0) == 70_000.0


def test_a_queue_at_a_nearly_empty_cache_teaches_nothing() -> None:
    assert holds(16_000.0, 40.0) == K1, "the original would learn 16 % of a cache"
    assert holds(16_000.0, 40.0, derived=70_000.0) == 70_000.0


def test_what_it_holds_without_a_queue_shows_what_is_wrong() -> None:
    assert holds(50_000.0, learned=50_000.0) == 50_000.0
    assert holds(51_000.0, learned=50_000.0) == holds(51_000.0, derived=50_000.0) == K1
    assert holds(20_000.0, 9.0, learned=10_000.0) == 10_000.0, "with a queue it shows nothing"


def test_observations_are_a_mean_of_ten_by_length_of_output() -> None:
    observed = ObservedCapacity()
    for tokens in range(20):
        observed.record(99.0, float(tokens))
    observed.record(100.0, 7.0)
    assert (observed.mean(0.0), observed.mean(499.0), observed.mean(500.0)) == (14.5, 7.0, None)


def test_flags_bound_by_tokens_or_by_requests() -> None:
    assert derived_tokens(900.0, 100.0, 1_000.0, 256.0) == pytest.approx(100 * 950.0)
    assert derived_tokens(900.0, 100.0, 1_000.0, 10.0) == pytest.approx(10 * 950.0)
    assert derived_tokens(0.0, 0.0) == 0.0


def test_a_pool_that_nobody_has_seen_is_at_most_as_one_like_it() -> None:
    assert empty_pool_tokens(5.0, 9.0, 7.0) == 5.0
    assert empty_pool_tokens(None, 9.0, 7.0) == 7.0
    assert empty_pool_tokens(None, 6.0, 7.0) == empty_pool_tokens(None, 6.0, None) == 6.0


def test_a_request_that_waits_for_prefill_takes_its_prompt_alone() -> None:
    assert request_tokens("prefill", 500.0, 100.0) == 500.0
    assert request_tokens("decode", 500.0, 100.0) == request_tokens("aggregated", 500.0, 100.0) == 600.0
