"""Tests of the harness itself: matches, differences, and its report of cases without an answer."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import answered
from tests.vectors.cases import Case, cases_in
from tests.vectors.deviations import RULES
from tests.vectors.matching import difference

VECTORS = Path(__file__).parent


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1.0, 1.0 + 1e-7),
        (2, 2.0),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1, {"min": 0}], (1, 5)),
        ({"min": 1, "max": 2}, 2),
        ({"gt": 1, "lt": 2}, 1.5),
        ({"not": 0}, 1),
        ({"not": 0}, None),
        (None, None),
        ({}, {"a": 1}),
        ({"a_one_of": [1, 2]}, {"a": 2}),
    ],
)
def test_matching_answers_have_no_difference(expected: Any, got: Any) -> None:
    assert difference(expected, got, 1e-6) is None


@pytest.mark.parametrize(
    ("expected", "got", "says"),
    [
        (1.0, 1.0 + 1e-5, "out: 1.00001 is not 1.0"),
        (0, False, "out: False is not 0"),
        (1, None, "out: None is not 1"),
        (None, 0, "out: 0 is not None"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "out.a.b: 2 is not 1"),
        ({"a": 1}, {}, "out.a: 'missing' is not 1"),
        ({"a": 1}, None, "out: None is no object"),
        ([1, 2], [1], "out: [1] is not [1, 2]"),
        ([1, 2], [1, 3], "out[1]: 3 is not 2"),
        ({"max": 2}, 2.5, "out: 2.5 is not"),
        ({"min": 1}, 0.5, "out: 0.5 is not"),
        ({"min": 1}, None, "out: None is not"),
        ({"gt": 1}, 1, "out: 1 is not"),
        ({"lt": 1}, 1, "out: 1 is not"),
        ({"not": 0}, 0, "out: 0 is not"),
        ({"a_one_of": [1, 2]}, {"a": 3}, "out.a_one_of: 3 is none of [1, 2]"),
        ({"a_one_of": [1]}, {}, "out.a_one_of: 'missing' is none of"),
    ],
)
def test_a_difference_names_its_place(expected: Any, got: Any, says: str) -> None:
    assert str(difference(expected, got, 1e-6)).startswith(says)


def test_a_file_of_each_kind_is_read(tmp_path: Path) -> None:
    rate = {"lambda_rps": 2, "wait_ms": 3}
    files = {
        "dynamo_vectors.json": {"cases": [{"id": "a", "group": "g", "op": None, "in": {}, "out": 1, "tol": 0.5}]},
        "llumnix_vectors.json": {"meta": {}, "cases": [{"id": "b", "kind": "metric", "given": 1, "expect": 2}]},
        "wva_vectors.json": {"cases": [{"id": "c", "area": "rescale", "input": 3, "expect": 4}]},
        "wva_queueing.json": {"cases": [{"id": "d", "params": {"alpha": 1}, "rate_max_rps": 5, "analyze": [rate]}]},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert cases_in(tmp_path) == [
        Case("a", "g", "g", {}, 1, 0.5),
        Case("b", "llumnix.metric", "llumnix.metric", {"given": 1, "shared": {"meta": {}}}, 2),
        Case("c", "wva.rescale", "wva.rescale", 3, 4),
        Case("d", "wva.queueing", "wva.queueing", {"alpha": 1}, {"rate_max_rps": 5}, 1e-3, 0.05),
        Case("d-analyze-0", "wva.queueing", "wva.queue_model_g1", {"alpha": 1, "lambda_rps": 2}, rate, 1e-3, 0.05),
    ]


def test_deviation_rules_have_reasons_and_name_no_case() -> None:
    ids = [case.id for case in cases_in(VECTORS / "data")]
    text = (VECTORS / "deviations.py").read_text()
    assert all(rule.reason for rule in RULES)
    assert not [one for one in ids if f'"{one}"' in text]


def run_of(folder: Path, cases: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run the cases as the vectors of a folder."""
    (folder / "dynamo_vectors.json").write_text(json.dumps({"cases": cases}))
    arguments = ["-p", "no:cacheprovider", str(VECTORS / "test_vectors.py"), "--vectors", str(folder)]
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=VECTORS.parents[1], capture_output=True, text=True, check=False)


def test_a_group_that_lost_an_answer_fails(tmp_path: Path) -> None:
    regress = {"group": "regression", "op": "v1.regress", "in": {"points": [[1, 1]]}, "out": {"slope": None}}
    cases = [regress | {"id": f"one-{number}"} for number in range(5)]
    assert run_of(tmp_path, cases).returncode == 0
    done = run_of(tmp_path, [*cases[1:], regress | {"id": "gone", "op": "v9.regress"}])
    assert done.returncode == 1
    assert "regression: 4 of 5 cases are answered, and 5 were" in done.stdout


def test_a_new_answer_requests_a_higher_expected_number() -> None:
    cases, known = Counter({"a": 3, "b": 3, "c": 9}), {"a": {3: 2, 9: 9}, "b": {3: 3}}
    assert list(answered.lost(cases, Counter({"a": 2, "b": 3}), known)) == []
    assert list(answered.gained(cases, Counter({"a": 3, "b": 3, "c": 9}), known)) == [
        "a: 3 of 3 cases are answered: raise 2 in answered.json"
    ]


def test_every_group_of_the_own_vectors_has_an_expected_number() -> None:
    cases = Counter(case.group for case in cases_in(VECTORS / "data"))
    expected = answered.read()
    assert [group for group, count in cases.items() if count not in expected.get(group, {})] == []


def test_the_table_counts_passed_failed_and_uncovered_cases(tmp_path: Path) -> None:
    regress = {"group": "regression", "op": "v1.regress", "in": {"points": [[1, 1]]}}
    cases = [
        {"id": "right", **regress, "out": {"slope": None}},
        {"id": "wrong", **regress, "out": {"slope": 7}},
        {"id": "unknown", "group": "other", "op": "v9.other", "in": {}, "out": {}},
        {"id": "more", **regress, "in": {"points": [], "what": 1}, "out": {}},
        {
            "id": "rule",
            "group": "perf-model",
            "op": "v3.capacity",
            "in": {
                "worker_type": "prefill",
                "history": [{"np": 1, "pt": 100 * n, "wall": 0.1 * n} for n in range(1, 6)],
                "isl": 1_000,
                "ttft_ms": 1,
            },
            "out": {"rps": 1.0, "eligible": False},
        },
    ]
    done = run_of(tmp_path, cases)
    assert done.returncode == 1, done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["regression", "1", "1", "0", "1"] in lines
    assert ["other", "0", "0", "0", "1"] in lines
    assert ["perf-model", "0", "0", "1", "0"] in lines
    assert ["all", "1", "1", "1", "2"] in lines
