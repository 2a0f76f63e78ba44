"""The beam search: when it replaces the integer program, and how good it is."""

from typing import Any

import pytest

from loadline.core.planning.allocation import greedy
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.solver import solve
from loadline.solver.candidate_table import CandidateTable
from tests.support.contended_systems import rank
from tools.bench.allocation import PLENTY, SCARCE, SHORT, fleet


def spent(problem: AllocationProblem, allocation: Allocation | None) -> float:
    """Return the cost of an allocation that serves all models."""
    assert allocation is not None
    assert not allocation.unserved
    return rank(problem, allocation)[1]


@pytest.mark.parametrize(("supply", "dearer"), [(SHORT, 0.02), (SCARCE, 0.12)])
@pytest.mark.parametrize("seed", [2, 3, 7])
def test_the_beam_search_serves_a_large_fleet_without_an_integer_program(
    supply: float, dearer: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        pytest.fail("a mixed-integer program was solved")

    monkeypatch.setattr(CandidateTable, "integral", refused)
    problem, plenty = fleet(supply, seed), fleet(PLENTY, seed)
    assert greedy(problem).unserved
    least = spent(plenty, greedy(plenty))
    assert least < spent(problem, solve(problem, 60.0)) <= least * (1.0 + dearer)


def test_an_integer_program_is_solved_if_the_beam_search_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fleet(SHORT, 3)
    monkeypatch.setattr("loadline.solver.exact.beam_search", lambda *_: None)
    spent(problem, solve(problem, 60.0))
