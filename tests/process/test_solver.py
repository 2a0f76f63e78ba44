"""Allocations in a child process: as in this process, or none if the child is late or answers garbage."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from loadline.adapters.child_fitter import ChildFitter
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem, ModelRequest, PoolOption, RoleRequest
from loadline.core.vocabulary.forecasts import Forecast, ForecastKnobs, ForecastQuery, Series
from loadline.solver import solve

PATIENCE_S: Final = 60.0
HEAD: Final = "import sys, time\nfrom loadline.adapters.frames import with_length, READY\nout = sys.stdout.buffer\n"
BEGIN: Final = f"{HEAD}out.write(with_length(READY))\nout.flush()\nsys.stdin.buffer.read(8)\n"
HANGS: Final = f"{BEGIN}time.sleep(3600)"
CRASHES: Final = f"{BEGIN}sys.exit(3)"
NONSENSE: Final = f"{BEGIN}out.write(with_length(b'[1]'))\nout.flush()\ntime.sleep(3600)"
QUERY: Final = ForecastQuery(Series((1.0, 2.0) * 4, 60_000, 480_000), 2, ForecastKnobs("constant"))


def problem() -> AllocationProblem:
    wants = tuple(
        ModelRequest(
            name, 1, (RoleRequest("decode", 6.0, (PoolOption("pool", 1.0, 2.0, {"h100": 1}, replicas_max=10),)),)
        )
        for name in ("a", "b")
    )
    return AllocationProblem(wants, {"h100": 10}, "priority_round_robin")


def solved(solver: tuple[str, ...], time_limit_s: float) -> Allocation | None:
    async def scenario() -> Allocation | None:
        fitter = ChildFitter(solver=solver)
        try:
            return await fitter.solve(problem(), time_limit_s)
        finally:
            await fitter.close()

    return asyncio.run(scenario())


def test_the_child_answers_as_this_process_does() -> None:
    answer = solved((), PATIENCE_S)
    assert answer is not None
    assert answer == solve(problem(), PATIENCE_S)
    assert sum(count for pools in answer.counts.values() for count in pools.values()) == 10


@pytest.mark.parametrize("script", [HANGS, CRASHES, NONSENSE], ids=["hangs", "crashes", "nonsense"])
def test_a_solver_without_an_answer_returns_no_allocation(script: str) -> None:
    assert solved((sys.executable, "-c", script), 0.1) is None


def test_a_solver_without_scipy_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").write_text("raise OSError('libgomp.so.1: no such file')", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    said: list[str] = []

    async def scenario() -> None:
        fitter = ChildFitter(on_unstarted=said.append)
        assert await fitter.solve(problem(), PATIENCE_S) is None
        await fitter.close()

    asyncio.run(scenario())
    [text] = said
    assert text.startswith("the process of the exact solver cannot start: ")


def test_a_solver_that_hangs_delays_no_forecast() -> None:
    async def scenario() -> Forecast | None:
        fitter = ChildFitter(solver=(sys.executable, "-c", HANGS))
        solving = asyncio.create_task(fitter.solve(problem(), PATIENCE_S))
        try:
            answer = await fitter.fit(QUERY, PATIENCE_S)
            assert not solving.done()
            return answer
        finally:
            await fitter.close()
            assert await solving is None

    answer = asyncio.run(scenario())
    assert answer is not None
    assert not answer.fallback
