"""Cases of the vector files: each has the original's output or that of a deviation rule, or is not covered."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.vectors import (
    answered,
    dynamo_fleet,
    dynamo_forecasts,
    dynamo_load,
    dynamo_models,
    dynamo_pipeline,
    dynamo_threshold,
    llumnix_parts,
    llumnix_policies,
    llumnix_requests,
    llumnix_workers,
    wva_allocation,
    wva_arbitration,
    wva_queueing,
    wva_saturation,
)
from tests.vectors.answering import Answer, NotCovered
from tests.vectors.cases import Case
from tests.vectors.deviations import rule_for
from tests.vectors.matching import difference

ANSWERS: dict[str, Answer] = {
    **dynamo_threshold.ANSWERS,
    **dynamo_models.ANSWERS,
    **dynamo_load.ANSWERS,
    **dynamo_forecasts.ANSWERS,
    **dynamo_fleet.ANSWERS,
    **dynamo_pipeline.ANSWERS,
    **llumnix_policies.ANSWERS,
    **llumnix_parts.ANSWERS,
    **llumnix_requests.ANSWERS,
    **llumnix_workers.ANSWERS,
    **wva_arbitration.ANSWERS,
    **wva_allocation.ANSWERS,
    **wva_queueing.ANSWERS,
    **wva_saturation.ANSWERS,
}


SEEN: Counter[str] = Counter()
"""Cases that ran, by group."""
ANSWERED: Counter[str] = Counter()
"""Cases that ran and have an answer, by group."""


def test_case(case: Case, record_property: Callable[[str, object], None]) -> None:
    record_property("group", case.group)
    record_property("outcome", "not covered")
    SEEN[case.group] += 1
    if case.op not in ANSWERS:
        pytest.skip(f"not covered: nothing answers {case.op or case.group}")
    try:
        got = ANSWERS[case.op](case.given)
    except NotCovered as missing:
        pytest.skip(f"not covered: {missing}")
    ANSWERED[case.group] += 1
    rule = rule_for(case)
    record_property("outcome", "deviations" if rule else "passed")
    if rule:
        record_property("reason", rule.reason)
    expected = rule.expects(case) if rule else case.expected
    wrong = difference(expected, got, case.tolerance, near_ms=case.near_ms)
    assert wrong is None, wrong


def test_no_group_has_lost_an_answer(all_cases: list[Case], record_property: Callable[[str, object], None]) -> None:
    """Check the counts of answers; runs after all cases."""
    if SEEN.total() < len(all_cases):
        pytest.skip("some cases did not run")
    expected = answered.read()
    record_property("gained", list(answered.gained(SEEN, ANSWERED, expected)))
    assert list(answered.lost(SEEN, ANSWERED, expected)) == []
