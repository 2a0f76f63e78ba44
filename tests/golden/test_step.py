"""The agent answers recorded lines of ``loadline step`` as it did when they were recorded."""

import pytest

from loadline.core.planning.planners import PLANNERS
from tests.golden.stepping import CASES, STEP, recorded_answers


def test_there_is_a_case_of_every_planner() -> None:
    written = "".join((STEP / f"{case}.toml").read_text("utf-8") for case in CASES)
    assert {name for name in PLANNERS if f'planner = "{name}"' not in written} == set()


@pytest.mark.parametrize("case", CASES)
def test_the_same_lines_have_the_same_answers(case: str) -> None:
    expected = (STEP / f"{case}.expected.jsonl").read_text("utf-8").splitlines()
    answers = recorded_answers(case)
    assert len(answers) == len(expected)
    for number, (answer, before) in enumerate(zip(answers, expected, strict=True), 1):
        assert answer == before, f"answer {number}"
