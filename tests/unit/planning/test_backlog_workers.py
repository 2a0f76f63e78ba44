"""Workers for a backlog: as many as cost least together with the requests that are late behind it."""

from loadline.core.planning.sizing.needs.backlog_workers import QueuedRequests, workers_for_backlog


def chosen(
    queued: QueuedRequests, *, requests_per_s: float = 150.0, current: int = 6, workers_max: int = 16, cost: float = 0.4
) -> int:
    return workers_for_backlog(
        queued, requests_per_s, 28.0, needed=5.8, current=current, workers_max=workers_max, cost_of_late=cost
    )


def test_without_a_backlog_the_arrivals_decide() -> None:
    assert chosen(QueuedRequests(0, 0)) == 6


def test_a_backlog_behind_two_workers_is_diluted() -> None:
    assert 8 <= chosen(QueuedRequests(1_500, 2)) <= 14


def test_dearer_misses_get_more_workers() -> None:
    queued = QueuedRequests(1_500, 2)
    assert chosen(queued, cost=0.05) < chosen(queued, cost=2.0)


def test_existing_workers_are_kept_for_a_backlog_that_is_too_small_to_start_some() -> None:
    queued = QueuedRequests(40, 1)
    assert chosen(queued, current=6, cost=0.05) == 6
    assert 6 < chosen(queued, current=12, cost=0.05) <= 12


def test_a_count_never_exceeds_the_maximum_for_a_backlog() -> None:
    assert chosen(QueuedRequests(100_000, 2), workers_max=9, cost=10.0) == 9


def test_arrivals_above_the_maximum_are_still_asked_for() -> None:
    assert chosen(QueuedRequests(100, 2), workers_max=4) == 6


def test_a_huge_maximum_is_searched_in_few_steps() -> None:
    found = workers_for_backlog(
        QueuedRequests(1e6, 2), 1e7, 28.0, needed=10.0, current=6, workers_max=1_000_000, cost_of_late=100.0
    )
    assert 10 <= found <= 1_000_000
