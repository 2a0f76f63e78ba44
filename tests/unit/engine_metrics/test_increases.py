"""Increases of counters whose series come, go and get other labels."""

from loadline.engine_metrics.exposition import Exposition
from loadline.engine_metrics.increases import Counters


def page(**series: float) -> Exposition:
    return Exposition({"m": dict(series)}, 0, frozenset({"m"}))


def increases(*pages: Exposition) -> list[list[tuple[str, float]]]:
    counters, found = Counters(), []
    for one in pages:
        counters.begin(one)
        found.append(counters.increases("m"))
    return found


def test_a_new_series_of_a_known_metric_counts_from_zero() -> None:
    assert increases(page(a=100), page(a=110, b=7)) == [[], [("a", 10), ("b", 7)]]


def test_series_that_all_get_another_label_yield_nothing_of_their_past() -> None:
    assert increases(page(a=1_000_000), page(x=1_000_010), page(x=1_000_020)) == [[], [], [("x", 10)]]


def test_labels_that_change_back_yield_nothing_of_the_time_between() -> None:
    """A relabelling is undone after an hour: its 4,000 requests are no traffic of 15 s."""
    assert increases(page(a=1_000), page(x=1_010), page(x=4_990), page(a=5_000), page(a=5_010)) == [
        [], [], [("x", 3_980)], [], [("a", 10)],
    ]  # fmt: skip


def test_labels_that_change_while_a_page_lacks_the_metric_yield_nothing_of_the_past() -> None:
    none = Exposition({}, 0, frozenset())
    found = increases(page(a=1_000), none, page(x=1_010), none, page(a=5_908), page(a=5_910))
    assert found == [[], [], [], [], [], [("a", 2)]]


def test_labels_of_a_new_program_that_has_counted_nothing_before_count_from_zero() -> None:
    none_yet = Exposition({}, 0, frozenset({"m"}))
    assert increases(page(a=1_000), none_yet, page(x=3)) == [[], [], [("x", 3)]]
