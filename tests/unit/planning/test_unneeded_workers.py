"""Workers that a load has not needed for a while."""

from loadline.core.planning.sizing.needs.unneeded_workers import UnneededWorkers
from tests.support.fleet_harness import START

SECOND_MS = 1_000


def test_workers_are_unneeded_once_the_load_has_not_needed_them_for_a_while() -> None:
    unneeded = UnneededWorkers()
    unneeded.update(4, 4, 4, 0, START)
    unneeded.update(2, 2, 4, 0, START + SECOND_MS)
    assert unneeded.among(4, START + 15 * SECOND_MS) == 0
    assert unneeded.among(4, START + 16 * SECOND_MS) == 2
    assert unneeded.among(3, START + 16 * SECOND_MS) == 1
    for at in range(5, 20, 5):
        unneeded.update(2, 2, 4, 0, START + at * SECOND_MS)
    unneeded.update(3, 3, 4, 0, START + 20 * SECOND_MS)
    assert unneeded.among(4, START + 20 * SECOND_MS) == 1


def test_what_was_needed_before_the_first_estimate_is_unknown() -> None:
    unneeded = UnneededWorkers()
    unneeded.update(2, 2, 4, 0, START)
    unneeded.update(3, 3, 4, 0, START + SECOND_MS)
    assert unneeded.among(4, START + SECOND_MS) == 0
    assert unneeded.among(4, START + 16 * SECOND_MS) == 1


def test_workers_are_needed_for_two_short_lulls() -> None:
    unneeded = UnneededWorkers()
    unneeded.update(4, 4, 4, 0, START)
    unneeded.update(2, 2, 4, 60 * SECOND_MS, START + SECOND_MS)
    assert unneeded.among(4, START + 120 * SECOND_MS) == 0
    assert unneeded.among(4, START + 121 * SECOND_MS) == 2


def test_workers_for_a_backlog_are_needed_but_do_not_last() -> None:
    unneeded = UnneededWorkers()
    unneeded.update(6, 3, 2, 0, START)
    assert unneeded.among(6, START + SECOND_MS) == 0
    assert unneeded.lasting.max(START + SECOND_MS) == 3


def test_nothing_is_unneeded_before_the_first_estimate() -> None:
    assert UnneededWorkers().among(4, START) == 0


def test_what_was_needed_in_a_gap_of_the_data_is_unknown() -> None:
    unneeded = UnneededWorkers()
    for at in range(20):
        unneeded.update(2, 2, 4, 0, START + at * SECOND_MS)
    unneeded.update(2, 2, 4, 0, START + 60 * SECOND_MS)
    assert unneeded.among(4, START + 60 * SECOND_MS) == 0
    for at in range(61, 77):
        unneeded.update(2, 2, 4, 0, START + at * SECOND_MS)
    assert unneeded.among(4, START + 76 * SECOND_MS) == 2
