"""Fitter with real child processes: correct ones, and ones that hang, crash, answer garbage or are slow."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from loadline.adapters.child_fitter import ChildFitter
from loadline.core.vocabulary.forecasts import Forecast, ForecastKnobs, ForecastQuery, PredictorName, Series
from loadline.forecast import forecast
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

PATIENCE_S: Final = 60.0
VALUES: Final = tuple(100.0 + 10.0 * (at % 7) for at in range(60))
LAST: Final = VALUES[-1]

HEAD: Final = """
import os, sys, time
from loadline.adapters.frames import with_length, READY
out, questions = os.fdopen(1, "wb", 0), os.fdopen(0, "rb", 0)
def ask():
    size = int.from_bytes(questions.read(4))
    while size:
        size -= len(questions.read(size))
def say(frame):
    out.write(with_length(frame))
"""
HANGS: Final = "say(READY)\nask()\ntime.sleep(3600)"
CRASHES: Final = "say(READY)\nask()\nos._exit(3)"
MUTE: Final = "time.sleep(3600)"
NONSENSE: Final = "say(READY)\nask()\nsay(b'nonsense')\ntime.sleep(3600)"
NESTED: Final = "say(READY)\nask()\nsay(b'[' * 200000)\ntime.sleep(3600)"
HUGE: Final = "say(READY)\nask()\nout.write(b'\\xff\\xff\\xff\\xff' + b'x' * 10_000_000)\ntime.sleep(3600)"
ANSWERS: Final = "say(READY)\nask()\nsay(b'%s')\ntime.sleep(3600)"
SHORT: Final = ANSWERS % '{"mean":[1],"upper":[1],"predictor":"kalman"}'
NEGATIVE: Final = ANSWERS % '{"mean":[1,-1,1],"upper":[1,1,1],"predictor":"kalman"}'
CROSSED: Final = ANSWERS % '{"mean":[1,1,1.5],"upper":[1,1,1],"predictor":"kalman"}'
# The child's own child keeps the pipes open and must be killed with it.
PARENT: Final = "import subprocess\nsay(READY)\nask()\nsubprocess.run(['sleep', '3600'])"


def query(predictor: PredictorName = "kalman") -> ForecastQuery:
    return ForecastQuery(Series(VALUES, 60_000, 3_600_000), 3, ForecastKnobs(predictor))


@asynccontextmanager
async def fitter(script: str = "") -> AsyncIterator[ChildFitter]:
    found = ChildFitter(command=(sys.executable, "-c", HEAD + script) if script else ())
    try:
        yield found
    finally:
        await found.close()
        assert found.pid == 0


def is_reaped(pid: int) -> Callable[[], bool]:
    """Return whether a process has ended and was reaped; a zombie still has its folder in /proc."""
    return lambda: not Path(f"/proc/{pid}").exists()


def fallback_reason(answer: Forecast | None) -> str:
    """Return the reason for which the forecast is the last value."""
    assert answer is not None
    assert answer.predictor == "constant"
    assert answer.mean == (LAST,) * 3
    return answer.fallback


@pytest.mark.parametrize("predictor", ["constant", "kalman", "arima", "seasonal", "prophet"])
def test_the_child_answers_as_this_process_does(predictor: PredictorName) -> None:
    async def scenario() -> Forecast | None:
        async with fitter() as child:
            return await child.fit(query(predictor), PATIENCE_S)

    answer = asyncio.run(scenario())
    assert answer == forecast(query(predictor))
    assert answer is not None
    assert answer.fallback == ""


def test_the_child_imports_no_module_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)

    async def scenario() -> Forecast | None:
        async with fitter() as child:
            return await child.fit(query("constant"), PATIENCE_S)

    assert asyncio.run(scenario()) is not None


def test_a_history_without_values_has_no_forecast() -> None:
    async def scenario() -> None:
        async with fitter() as child:
            assert await child.fit(ForecastQuery(Series((None, None), 60_000), 3), PATIENCE_S) is None

    asyncio.run(scenario())


def test_one_child_serves_many_requests_and_ends_when_closed() -> None:
    async def scenario() -> None:
        async with fitter() as child:
            answers = await asyncio.gather(*(child.fit(query(), PATIENCE_S) for _ in range(50)))
            assert {answer.predictor for answer in answers if answer} == {"kalman"}
            pid = child.pid
            assert pid
        assert is_reaped(pid)()

    asyncio.run(scenario())


@pytest.mark.parametrize("script", [HANGS, PARENT])
def test_a_child_that_hangs_is_killed_at_the_deadline(script: str) -> None:
    async def scenario() -> None:
        async with fitter(script) as child:
            began = asyncio.get_running_loop().time()
            pending = asyncio.create_task(child.fit(query(), 0.5))
            await until(lambda: child.pid)
            pid = child.pid
            assert fallback_reason(await pending) == "late"
            assert asyncio.get_running_loop().time() - began >= 0.5
            assert is_reaped(pid)()

    asyncio.run(scenario())


@pytest.mark.parametrize("script", [CRASHES, NONSENSE, NESTED, HUGE, SHORT, NEGATIVE, CROSSED], ids=str.__len__)
def test_a_child_that_crashes_or_answers_garbage_is_replaced(script: str) -> None:
    async def scenario() -> None:
        async with fitter(script) as child:
            assert fallback_reason(await child.fit(query(), PATIENCE_S)) == "away"
            assert child.pid == 0

    asyncio.run(scenario())


def test_the_next_request_after_a_hang_is_answered(tmp_path: Path) -> None:
    once = f"path = {str(tmp_path / 'hung')!r}\nif not os.path.exists(path):\n    open(path, 'w').close()\n"
    program = "from loadline.adapters.forecast_child import main\nmain([])"
    script = f"{once}    say(READY)\n    ask()\n    time.sleep(3600)\n{program}"

    async def scenario() -> None:
        async with fitter(script) as child:
            first, second = await asyncio.gather(child.fit(query(), 0.5), child.fit(query(), PATIENCE_S))
            assert fallback_reason(first) == "late"
            assert second == forecast(query())

    asyncio.run(scenario())


def test_a_child_killed_while_idle_is_replaced_without_a_failure() -> None:
    async def scenario() -> None:
        async with fitter() as child:
            await child.fit(query(), PATIENCE_S)
            pid = child.pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda: child.pid == 0)
            answer = await child.fit(query(), PATIENCE_S)
            assert answer == forecast(query())
            assert child.pid not in (0, pid)

    asyncio.run(scenario())


def test_a_child_killed_during_a_fit_fails_that_fit_only() -> None:
    async def scenario() -> None:
        async with fitter(HANGS) as child:
            pending = asyncio.create_task(child.fit(query(), PATIENCE_S))
            await until(lambda: child.pid)
            os.kill(child.pid, signal.SIGKILL)
            assert fallback_reason(await pending) == "away"

    asyncio.run(scenario())


def test_a_child_that_crashes_repeatedly_is_restarted_with_a_backoff() -> None:
    async def scenario() -> None:
        async with fitter("os._exit(1)") as child:
            answers = [await child.fit(query(), PATIENCE_S) for _ in range(3)]
            assert [fallback_reason(answer) for answer in answers] == ["away"] * 3
            assert answers[2] is not None
            assert "restarts after a wait" in answers[2].detail

    asyncio.run(scenario())


MISSING: Final = ("/nonexistent/python",)


@pytest.mark.parametrize("command", [MISSING, (sys.executable, "-c", "import nonexistent")], ids=["missing", "broken"])
def test_a_child_that_cannot_start_is_reported_once(command: tuple[str, ...]) -> None:
    said: list[str] = []

    async def scenario() -> None:
        child = ChildFitter(command=command, on_unstarted=said.append)
        try:
            answers = [await child.fit(query(), PATIENCE_S) for _ in range(3)]
            assert [fallback_reason(answer) for answer in answers] == ["away"] * 3
            assert answers[2] is not None
            assert "restarts after a wait" in answers[2].detail
            await until_async(lambda: restarted(child))
        finally:
            await child.close()

    async def restarted(child: ChildFitter) -> bool:
        answer = await child.fit(query(), PATIENCE_S)
        return answer is not None and "restarts after a wait" not in answer.detail

    asyncio.run(scenario())
    [text] = said
    assert text.startswith("the forecasting process cannot start: ")


def test_a_child_that_cannot_start_again_is_reported_again(tmp_path: Path) -> None:
    said: list[str] = []
    broken = tmp_path / "broken"
    script = f"{HEAD}if os.path.exists({str(broken)!r}):\n    os._exit(1)\nsay(READY)\nask()\nsay(b'null')\nos._exit(0)"

    async def scenario() -> None:
        child = ChildFitter(command=(sys.executable, "-c", script), on_unstarted=said.append)

        async def answered() -> bool:
            return await child.fit(query(), PATIENCE_S) is None

        try:
            for reports in (1, 2):
                broken.touch()
                await until(lambda: child.pid == 0)
                assert not await answered()
                assert len(said) == reports
                broken.unlink()
                await until_async(answered)
        finally:
            await child.close()

    asyncio.run(scenario())


def test_closing_answers_pending_requests() -> None:
    async def scenario() -> None:
        async with fitter(HANGS) as child:
            waiting = [asyncio.create_task(child.fit(query(), PATIENCE_S)) for _ in range(3)]
            await until(lambda: child.pid)
            await child.close()
            assert [fallback_reason(answer) for answer in await asyncio.gather(*waiting)] == ["away"] * 3
            assert fallback_reason(await child.fit(query(), PATIENCE_S)) == "away"

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_child_that_never_starts() -> None:
    async def scenario() -> None:
        async with fitter(MUTE) as child:
            waiting = asyncio.create_task(child.fit(query(), PATIENCE_S))
            await until(lambda: child.pid)
            await child.close()
            assert fallback_reason(await waiting) == "away"

    asyncio.run(scenario())


def test_the_answer_to_a_cancelled_request_is_discarded(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    slow = f"say(READY)\nask()\nopen({str(taken)!r}, 'w').close()\ntime.sleep(0.2)\nsay(b'null')\ntime.sleep(3600)"

    async def scenario() -> None:
        async with fitter(slow) as child:
            pending = asyncio.create_task(child.fit(query(), PATIENCE_S))
            await until(taken.exists)
            pending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pending
            assert child.pid == 0

    asyncio.run(scenario())


def test_a_slow_answer_before_the_deadline_is_used() -> None:
    slow = "say(READY)\nask()\ntime.sleep(0.3)\nsay(b'null')\ntime.sleep(3600)"

    async def scenario() -> None:
        async with fitter(slow) as child:
            assert await child.fit(query(), PATIENCE_S) is None

    asyncio.run(scenario())


def test_output_of_libraries_does_not_corrupt_answers() -> None:
    noisy = "from loadline.adapters import forecast_child\nfrom loadline.forecast import forecast\n"
    noisy += "forecast_child.forecast = lambda *asked: print('noise', flush=True) or forecast(*asked)\n"
    noisy += "forecast_child.main([])"

    async def scenario() -> None:
        async with fitter(noisy) as child:
            assert await child.fit(query(), PATIENCE_S) == forecast(query())

    asyncio.run(scenario())
