"""Fence of a scaler: the announcements that it may apply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.client.fence import DecisionFence, Freshness
from tests.support.decisions import decision


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((2, 5), Freshness.REPEATED),
        ((2, 6), Freshness.NEW),
        ((3, 1), Freshness.NEW),
        ((2, 4), Freshness.STALE),
        ((1, 9), Freshness.STALE),
    ],
)
def test_decisions_are_compared_by_epoch_then_sequence(second: tuple[int, int], expected: Freshness) -> None:
    fence = DecisionFence()
    assert fence.classify(decision(2, 5)) is Freshness.NEW
    assert fence.classify(decision(*second)) is expected


def test_models_have_independent_fences() -> None:
    fence = DecisionFence()
    fence.classify(decision(9, 9, model="a"))
    assert fence.classify(decision(1, 1, model="b")) is Freshness.NEW


def test_an_expired_decision_still_raises_the_fence() -> None:
    fence = DecisionFence()
    assert fence.classify(decision(2, 5, ttl_ms=0)) is Freshness.EXPIRED
    assert fence.classify(decision(2, 4)) is Freshness.STALE


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_accepted_decisions_only_rise(numbers: list[tuple[int, int]]) -> None:
    fence = DecisionFence()
    accepted = [number for number in numbers if fence.classify(decision(*number)) is Freshness.NEW]
    assert accepted == sorted(set(accepted))
    assert not numbers or accepted[-1] == max(numbers)
