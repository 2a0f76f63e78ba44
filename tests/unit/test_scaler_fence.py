"""Which announcements a scaler may obey."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.client.fence import Fence, Verdict
from tests.support.decisions import decision


@pytest.mark.parametrize(
    ("then", "verdict"),
    [
        ((2, 5), Verdict.REPEATED),
        ((2, 6), Verdict.NEW),
        ((3, 1), Verdict.NEW),
        ((2, 4), Verdict.STALE),
        ((1, 9), Verdict.STALE),
    ],
)
def test_compared_by_epoch_then_sequence(then: tuple[int, int], verdict: Verdict) -> None:
    fence = Fence()
    assert fence.judge(decision(2, 5)) is Verdict.NEW
    assert fence.judge(decision(*then)) is verdict


def test_models_are_independent() -> None:
    fence = Fence()
    fence.judge(decision(9, 9, model="a"))
    assert fence.judge(decision(1, 1, model="b")) is Verdict.NEW


def test_an_expired_decision_still_raises_the_fence() -> None:
    fence = Fence()
    assert fence.judge(decision(2, 5, ttl_ms=0)) is Verdict.EXPIRED
    assert fence.judge(decision(2, 4)) is Verdict.STALE


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_what_is_new_only_ever_rises(numbers: list[tuple[int, int]]) -> None:
    fence = Fence()
    obeyed = [number for number in numbers if fence.judge(decision(*number)) is Verdict.NEW]
    assert obeyed == sorted(set(obeyed))
    assert not numbers or obeyed[-1] == max(numbers)
