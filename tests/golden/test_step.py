"""The agent answers recorded lines of ``loadline step`` as it did when they were recorded."""

import pytest

from tests.golden.stepping import CASES, STEP, recorded_answers


@pytest.mark.parametrize("case", CASES)
def test_the_same_lines_have_the_same_answers(case: str) -> None:
    expected = (STEP / f"{case}.expected.jsonl").read_text("utf-8").splitlines()
    answers = recorded_answers(case)
    assert len(answers) == len(expected)
    for number, (answer, before) in enumerate(zip(answers, expected, strict=True), 1):
        assert answer == before, f"answer {number}"
