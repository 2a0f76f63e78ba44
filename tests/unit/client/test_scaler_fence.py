"""Fence of a scaler: the announcements that it may apply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.client.fence import ANSWERS_MIN, ASK_INTERVAL_S, CHALLENGE_S, CountsInForce, DecisionFence, Freshness
from loadline.core.vocabulary.decisions import PoolTarget, Victim
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
    assert fence.classify(decision(2, 5), 0.0) is Freshness.NEW
    assert fence.classify(decision(*second), 0.0) is expected


def test_models_have_independent_fences() -> None:
    fence = DecisionFence()
    fence.classify(decision(9, 9, model="a"), 0.0)
    assert fence.classify(decision(1, 1, model="b"), 0.0) is Freshness.NEW


def test_an_expired_decision_still_raises_the_fence() -> None:
    fence = DecisionFence()
    assert fence.classify(decision(2, 5, ttl_ms=0), 0.0) is Freshness.EXPIRED
    assert fence.classify(decision(2, 4), 0.0) is Freshness.STALE


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_accepted_decisions_only_rise(numbers: list[tuple[int, int]]) -> None:
    fence = DecisionFence()
    accepted = [number for number in numbers if fence.classify(decision(*number), 0.0) is Freshness.NEW]
    assert accepted == sorted(set(accepted))
    assert not numbers or accepted[-1] == max(numbers)


# -- numbers that no leader has ----------------------------------------------------------------------------------------

FORGED = (2**53, 2**53)


def answer_until(fence: DecisionFence, until_s: float) -> None:
    """Let a leader answer each request that the fence makes until a time, and announce nothing new."""
    while (ask_at_s := fence.next_ask_s()) is not None and ask_at_s <= until_s:
        for model in fence.to_ask(ask_at_s):
            fence.record_answer(model, ask_at_s)


def test_newer_decisions_of_a_leader_are_accepted_a_minute_after_the_first_was_stale() -> None:
    fence = DecisionFence()
    fence.classify(decision(*FORGED), 0.0)
    assert fence.classify(decision(5, 7), 100.0) is Freshness.STALE
    answer_until(fence, 100.0 + CHALLENGE_S)
    assert fence.classify(decision(5, 8), 100.0 + CHALLENGE_S - 0.1) is Freshness.STALE
    assert fence.classify(decision(5, 7), 100.0 + CHALLENGE_S) is Freshness.STALE, "an announcement that was delayed"
    assert fence.classify(decision(5, 9), 100.0 + CHALLENGE_S) is Freshness.NEW
    assert fence.highest("m") == (5, 9)
    assert fence.classify(decision(5, 8), 100.0 + CHALLENGE_S) is Freshness.STALE


def test_a_forged_sequence_of_the_leaders_epoch_blocks_a_minute_only() -> None:
    fence = DecisionFence()
    fence.classify(decision(5, FORGED[1]), 0.0)
    assert fence.classify(decision(5, 7), 0.0) is Freshness.STALE
    answer_until(fence, CHALLENGE_S)
    assert fence.classify(decision(5, 8), CHALLENGE_S) is Freshness.NEW


def test_the_minute_begins_again_while_the_highest_number_is_announced() -> None:
    fence = DecisionFence()
    fence.classify(decision(6, 1), 0.0)
    for repeated, second in enumerate(range(0, 600, 30)):
        assert fence.classify(decision(5, 7 + repeated), float(second)) is Freshness.STALE
        answer_until(fence, float(second))
        assert fence.classify(decision(6, 1), float(second)) is Freshness.REPEATED


def test_a_lower_epoch_does_not_profit_from_the_minute_of_another() -> None:
    fence = DecisionFence()
    fence.classify(decision(*FORGED), 0.0)
    fence.classify(decision(4, 1), 0.0)
    answer_until(fence, 30.0)
    fence.classify(decision(5, 1), 30.0)
    answer_until(fence, CHALLENGE_S)
    assert fence.classify(decision(4, 2), CHALLENGE_S) is Freshness.STALE
    assert fence.classify(decision(5, 2), CHALLENGE_S) is Freshness.STALE
    answer_until(fence, 30.0 + CHALLENGE_S)
    assert fence.classify(decision(5, 2), 30.0 + CHALLENGE_S) is Freshness.NEW


def test_forged_numbers_of_several_epochs_block_two_minutes_only() -> None:
    fence = DecisionFence()
    for below in range(3):
        fence.classify(decision(FORGED[0] - below, 1), 0.0)
    for sequence in range(1, 4):
        assert fence.classify(decision(5, sequence), CHALLENGE_S / 2 * sequence) is Freshness.STALE
        answer_until(fence, CHALLENGE_S / 2 * (sequence + 1))
    assert fence.classify(decision(5, 4), 2 * CHALLENGE_S) is Freshness.NEW


# -- requests to the present leader ------------------------------------------------------------------------------------


def test_the_leader_of_a_model_with_stale_decisions_is_asked_at_intervals_until_the_highest_number_comes() -> None:
    fence = DecisionFence()
    fence.classify(decision(6, 1), 0.0)
    assert (fence.next_ask_s(), fence.to_ask(0.0)) == (None, ())
    fence.classify(decision(5, 1), 1.0)
    assert (fence.next_ask_s(), fence.to_ask(1.0)) == (1.0, ("m",))
    assert fence.to_ask(0.9 + ASK_INTERVAL_S) == ()
    assert (fence.next_ask_s(), fence.to_ask(1.0 + ASK_INTERVAL_S)) == (1.0 + ASK_INTERVAL_S, ("m",))
    fence.classify(decision(6, 1), 7.0)
    assert (fence.next_ask_s(), fence.to_ask(100.0)) == (None, ())
    fence.classify(decision(5, 2), 7.0)
    assert fence.next_ask_s() == 1.0 + 2 * ASK_INTERVAL_S, "each announcement of a former leader begins anew"


@pytest.mark.parametrize("answers", range(ANSWERS_MIN + 1))
def test_no_decision_is_accepted_before_leaders_have_answered_several_requests(answers: int) -> None:
    fence = DecisionFence()
    fence.classify(decision(*FORGED), 0.0)
    fence.classify(decision(5, 1), 0.0)
    answer_until(fence, ASK_INTERVAL_S * (answers - 1))
    accepted = fence.classify(decision(5, 2), CHALLENGE_S) is Freshness.NEW
    assert accepted == (answers == ANSWERS_MIN)


def test_answers_of_more_than_a_minute_ago_do_not_count() -> None:
    fence = DecisionFence()
    fence.classify(decision(*FORGED), 0.0)
    fence.classify(decision(5, 1), 0.0)
    answer_until(fence, CHALLENGE_S)
    assert fence.classify(decision(5, 2), 3 * CHALLENGE_S) is Freshness.STALE
    answer_until(fence, 4 * CHALLENGE_S)
    assert fence.classify(decision(5, 3), 4 * CHALLENGE_S) is Freshness.NEW


def test_an_answer_to_a_request_before_the_first_stale_decision_does_not_count() -> None:
    fence = DecisionFence()
    fence.classify(decision(*FORGED), 0.0)
    fence.classify(decision(4, 1), 0.0)
    assert fence.to_ask(0.0) == ("m",)
    fence.classify(decision(5, 1), 0.5)
    for _ in range(ANSWERS_MIN):
        fence.record_answer("m", 1.0)
    assert fence.classify(decision(5, 2), 0.5 + CHALLENGE_S) is Freshness.STALE


def test_a_leader_that_was_unreachable_is_found_within_a_minute_of_its_return() -> None:
    fence = DecisionFence()
    fence.classify(decision(6, 1), 0.0)
    fence.classify(decision(5, 1), 0.0)
    answer_until(fence, CHALLENGE_S)
    assert fence.classify(decision(5, 2), CHALLENGE_S) is Freshness.NEW
    assert fence.next_ask_s() == 2 * CHALLENGE_S
    assert fence.to_ask(2 * CHALLENGE_S) == ("m",)
    assert fence.classify(decision(6, 1), 2 * CHALLENGE_S) is Freshness.NEW
    assert fence.next_ask_s() is None


def test_the_counts_of_a_void_decision_are_in_force_until_another_is_accepted() -> None:
    counts = CountsInForce()
    counts.accept(decision(*FORGED, target(9, 2)), FORGED)
    assert counts.unknown_to(decision(5, 8, target(2, 2))) == {"p": 9}
    counts.accept(decision(5, 8, target(3, 9)), (5, 8))
    counts.accept(decision(*FORGED, target(9, 2)), (5, 8))
    assert counts.of("m") == {"p": 3}, "a late answer to the void one does not bring it back"


# -- counts that a leader does not know --------------------------------------------------------------------------------


def target(replicas: int, previous: int, *, victims: int = 0, pool: str = "p") -> PoolTarget:
    named = tuple(Victim(f"w{number}", 1) for number in range(victims))
    return PoolTarget(pool, "decode", replicas, previous, named)


@pytest.mark.parametrize(
    ("epoch", "decided", "unknown"),
    [
        (2, target(3, 2), True),  # two of eight have registered
        (2, target(2, 2), True),
        (2, target(1, 2, victims=1), True),
        (2, target(8, 2), False),  # ends no worker
        (2, target(5, 8), False),
        (1, target(2, 2), False),  # its own term: the others never came
    ],
)
def test_a_decision_that_ends_workers_which_its_leader_does_not_know_is_recognised(
    epoch: int, decided: PoolTarget, *, unknown: bool
) -> None:
    counts = CountsInForce()
    assert counts.unknown_to(decision(epoch, 9, decided)) == {}, "nothing is in force"
    counts.accept(decision(1, 7, target(8, 2)), (1, 7))
    assert counts.unknown_to(decision(epoch, 9, decided)) == ({"p": 8} if unknown else {})


def test_all_pools_of_a_decision_are_told_if_one_is_unknown() -> None:
    counts = CountsInForce()
    counts.accept(decision(1, 7, target(8, 2), target(1, 1, pool="q")), (1, 7))
    assert counts.unknown_to(decision(2, 1, target(2, 2), target(4, 4, pool="q"))) == {"p": 8, "q": 1}


def test_an_answer_to_an_earlier_decision_does_not_bring_it_into_force_again() -> None:
    counts = CountsInForce()
    counts.accept(decision(1, 7, target(8, 2)), (1, 7))
    counts.accept(decision(1, 6, target(2, 2)), (1, 7))
    assert counts.of("m") == {"p": 8}
    assert counts.of("n") == {}


@pytest.mark.parametrize(
    ("decided", "unknown"),
    [
        (target(3, 2), {"p": 5}),
        (target(3, 2, victims=2), {}),  # they are leaving
        (target(2, 2, victims=1), {"p": 4}),
        (target(5, 2), {}),
        (target(1, 5), {}),
    ],
)
def test_a_scaler_that_has_accepted_nothing_yet_compares_with_what_exists(
    decided: PoolTarget, unknown: dict[str, int]
) -> None:
    counts = CountsInForce()
    counts.record_existing("m", "p", 5)
    assert counts.unknown_to(decision(1, 1, decided)) == unknown
    counts.accept(decision(1, 2, target(1, 1)), (1, 2))
    assert counts.unknown_to(decision(1, 3, decided)) == {}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4)), max_size=20))
def test_no_accepted_decision_of_another_term_ends_unknown_workers(decided: list[tuple[int, int, int]]) -> None:
    counts, in_force, epoch_before = CountsInForce(), 0, 0
    for sequence, (epoch, replicas, previous) in enumerate(sorted(decided, key=lambda one: one[0])):
        received = decision(epoch, sequence, target(replicas, previous))
        if counts.unknown_to(received):
            continue
        assert epoch == epoch_before or in_force <= max(replicas, previous)
        counts.accept(received, (epoch, sequence))
        in_force, epoch_before = replicas, epoch
