"""Arbitration between saturation and queueing: every row of the table."""

import pytest

from loadline.core.planning.arbitration import Arbitration, arbitrate
from loadline.core.vocabulary.reasons import ReasonCode


@pytest.mark.parametrize(
    ("saturation", "queueing", "shrink_safe", "target", "code"),
    [
        (4, 2, True, 3, ReasonCode.SATURATION_VETO),
        (4, 2, False, 3, ReasonCode.SATURATION_VETO),
        (3, 2, False, 3, ReasonCode.SHRINK_UNSAFE),
        (2, 2, False, 3, ReasonCode.SHRINK_UNSAFE),
        (4, 3, True, 4, ReasonCode.SATURATION_LEADS),
        (6, 4, False, 4, ReasonCode.QUEUEING_LEADS),
        (4, 4, False, 4, ReasonCode.QUEUEING_LEADS),
        (4, 6, False, 6, ReasonCode.QUEUEING_LEADS),
        (3, 6, False, 6, ReasonCode.QUEUEING_LEADS),
        (2, 6, True, 6, ReasonCode.QUEUEING_LEADS),
        (3, 1, True, 1, ReasonCode.QUEUEING_LEADS),
        (2, 1, True, 1, ReasonCode.QUEUEING_LEADS),
        (3, 3, True, 3, ReasonCode.QUEUEING_KEEPS),
        (2, 3, True, 3, ReasonCode.QUEUEING_KEEPS),
        (2, 3, False, 3, ReasonCode.QUEUEING_KEEPS),
    ],
)
def test_the_first_matching_row_decides(
    saturation: int, queueing: int, *, shrink_safe: bool, target: int, code: ReasonCode
) -> None:
    assert arbitrate(3, saturation, queueing, shrink_safe=shrink_safe) == Arbitration(target, code)


@pytest.mark.parametrize("shrink_safe", [True, False])
@pytest.mark.parametrize("wanted", [0, 2, 3, 5])
def test_without_one_recommendation_the_other_decides(wanted: int, *, shrink_safe: bool) -> None:
    result = arbitrate(3, wanted, None, shrink_safe=shrink_safe)
    assert result == Arbitration(wanted, ReasonCode.SATURATION_ALONE)
    result = arbitrate(3, None, wanted, shrink_safe=shrink_safe)
    assert result == Arbitration(wanted, ReasonCode.QUEUEING_ALONE)


@pytest.mark.parametrize("current", [0, 3])
def test_without_any_recommendation_the_count_is_kept(current: int) -> None:
    assert arbitrate(current, None, None, shrink_safe=True) == Arbitration(current, ReasonCode.NO_RECOMMENDATION)


@pytest.mark.parametrize("saturation", [None, 0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("queueing", [None, 0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("shrink_safe", [True, False])
def test_a_veto_prevents_shrinks_only(saturation: int | None, queueing: int | None, *, shrink_safe: bool) -> None:
    found = arbitrate(3, saturation, queueing, shrink_safe=shrink_safe)
    if found.code in {ReasonCode.SATURATION_VETO, ReasonCode.SHRINK_UNSAFE}:
        assert found.target == 3
    if saturation is not None and saturation > 3:
        assert found.target >= 3, "a saturated pool does not shrink"
    assert found.target in {3, saturation, queueing}
