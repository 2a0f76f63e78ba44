"""Durations as sentences of decisions and holds show them."""

import pytest

from loadline.core.vocabulary.durations import duration, rounded_duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (340.4, "340 ms"),
        (1_000, "1 s"),
        (4_321, "4.3 s"),
        (49_987, "50 s"),
        (90_000, "90 s"),
        (150_000, "2.5 min"),
        (1_800_000, "30 min"),
        (5_400_000, "90 min"),
        (9_000_000, "2.5 h"),
        (86_400_000, "24 h"),
        (-2_500, "-2.5 s"),
    ],
)
def test_a_rounded_duration_is_in_the_unit_that_people_would_say_it_in(ms: float, text: str) -> None:
    assert rounded_duration(ms) == text


def test_an_exact_duration_keeps_its_digits() -> None:
    assert [duration(ms) for ms in (30_000, 1_500, 90_000, 1_234)] == ["30 s", "1.5 s", "1.5 min", "1234 ms"]


def test_a_reason_says_how_long_it_lasts_as_people_would() -> None:
    numbers = {"wanted": 2.0, "allowed": 3.0, "window_ms": 180_000.0, "left_ms": 49_987.0}
    sentence = Reason(ReasonCode.STABILISATION, "decode", numbers).sentence()
    assert sentence == "decode: 2 held at 3: the highest proposal of the last 3 min, for 50 s more"


@pytest.mark.parametrize(
    ("pending", "text"), [(0, "0 workers pending"), (1, "1 worker pending"), (2, "2 workers pending")]
)
def test_a_reason_says_a_number_of_workers_as_people_would(pending: float, text: str) -> None:
    assert Reason(ReasonCode.WORKERS_PENDING, "decode", {"pending": pending}).sentence() == f"decode: {text}"
