"""Explanations that the agent keeps: encoded, bounded, and read again as they were."""

from math import isnan, nan

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.state.explanation_log import EXPLANATIONS_MAX, EncodedExplanation, ExplanationLog
from loadline.core.vocabulary.reasons import Explanation, Reason, ReasonCode
from tests.support.statuses import explanation


def log_of(*explanations: Explanation) -> ExplanationLog:
    log = ExplanationLog()
    for one in explanations:
        log.add(one)
    return log


def test_explanations_are_read_as_they_were_newest_first() -> None:
    first, other, second = explanation("m", 1, "d1"), explanation("n", 2, "d2"), explanation("m", 3, "d3")
    log = log_of(first, other, second)
    assert [*log.of_model("m")] == [second, first]
    assert [*log.of_decision("d2")] == [other]
    assert [*log.of_decision("d4")] == []


def test_the_oldest_explanation_is_lost_first() -> None:
    log = log_of(*(explanation(at_ms=number) for number in range(EXPLANATIONS_MAX + 2)))
    assert [one.at_ms for one in log.of_model("llama")] == [*range(EXPLANATIONS_MAX + 1, 1, -1)]


def test_a_superseded_decision_names_its_successor_and_no_other_does() -> None:
    log = log_of(explanation(decision_id="d1"), explanation(decision_id="d2"))
    log.mark_superseded("d1", "d2")
    assert [(one.decision_id, one.superseded_by) for one in log.of_model("llama")] == [("d2", ""), ("d1", "d2")]


def test_a_number_that_json_lacks_is_kept() -> None:
    log = log_of(replace(explanation(), limits=(Reason(ReasonCode.COOLDOWN, "decode", {"wanted": nan}),)))
    [found] = log.of_decision("d1")
    assert isnan(found.limits[0].numbers["wanted"])


def test_a_log_read_from_a_file_is_checked() -> None:
    log = msgspec.json.decode(msgspec.json.encode(log_of(explanation())), type=ExplanationLog)
    log.check()
    assert [*log.of_decision("d1")] == [explanation()]
    log.entries.append(EncodedExplanation("m", 1, "d2", b"\xc1"))
    with pytest.raises(msgspec.DecodeError):
        log.check()
