"""Answers of ``loadline step`` to recorded lines."""

import pytest

from loadline.core.planning.planners import PLANNERS
from tests.golden.stepping import CASES, STEP, recorded_answers


def test_every_planner_has_a_case() -> None:
    configurations = "".join((STEP / f"{case}.toml").read_text("utf-8") for case in CASES)
    assert {name for name in PLANNERS if f'planner = "{name}"' not in configurations} == set()


@pytest.mark.parametrize("case", CASES)
def test_recorded_lines_have_the_recorded_answers(case: str) -> None:
    expected = (STEP / f"{case}.expected.jsonl").read_text("utf-8").splitlines()
    answers = recorded_answers(case)
    assert len(answers) == len(expected)
    for number, (answer, recorded) in enumerate(zip(answers, expected, strict=True), 1):
        assert answer == recorded, f"answer {number}"
