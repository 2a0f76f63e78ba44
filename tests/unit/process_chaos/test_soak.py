"""What a soak says of the samples that it took."""

from collections.abc import Callable

import pytest

from tools.process_chaos.soak import Sample, Soak


def problems(**measure: Callable[[float], float]) -> list[str]:
    """Return the problems of two hours, whose measures are functions of the time in s."""
    soak = Soak()
    soak.page_events = 1
    for at_s in range(0, 7_200, 5):
        found = {"rss_mib": 70.0, "descriptors": 15.0, "journal_mib": 1.0}
        found |= {name: of(float(at_s)) for name, of in measure.items()}
        soak.samples.append(Sample(float(at_s), found["rss_mib"], int(found["descriptors"]), found["journal_mib"]))
    return soak.problems()


def test_a_steady_agent_has_no_problem() -> None:
    assert problems() == []


def test_files_that_are_open_for_a_while_after_a_fault_are_no_growth() -> None:
    assert problems(descriptors=lambda at_s: 21 if 5_000 <= at_s < 5_030 else 15) == []


@pytest.mark.parametrize("since_s", [1_800.0, 6_000.0])
def test_a_file_that_stays_open_is_growth(since_s: float) -> None:
    found = problems(descriptors=lambda at_s: 15 + (at_s >= since_s) + (at_s % 30 == 0))
    assert found == ["at least 15 files are open at the beginning, and 16 at the end"]


def test_memory_may_grow_by_a_mebibyte_an_hour() -> None:
    assert problems(rss_mib=lambda at_s: 70.0 + 0.9 * at_s / 3_600.0) == []
    assert problems(rss_mib=lambda at_s: 70.0 + 1.2 * at_s / 3_600.0) == ["memory grows by 1.20 MiB/h"]


def test_a_journal_keeps_its_limit() -> None:
    assert problems(journal_mib=lambda at_s: 8.1 if at_s == 600.0 else 7.9) == ["the journal exceeds its limit"]
