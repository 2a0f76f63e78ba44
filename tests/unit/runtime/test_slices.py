"""Computations in slices."""

import asyncio

import pytest

from loadline.runtime import slices
from loadline.runtime.slices import map_in_steps, run_in_slices


@pytest.mark.parametrize(
    ("slice_s", "order"), [(0.0, ["0", "loop", "1", "loop", "2", "loop"]), (60.0, ["0", "1", "2"])]
)
def test_other_work_runs_between_slices(monkeypatch: pytest.MonkeyPatch, slice_s: float, order: list[str]) -> None:
    monkeypatch.setattr(slices, "SLICE_S", slice_s)
    log: list[str] = []

    async def scenario() -> None:
        def compute(item: int) -> int:
            log.append(str(item))
            asyncio.get_running_loop().call_soon(log.append, "loop")
            return 10 * item

        result, _ = await run_in_slices(map_in_steps(compute, range(3)))
        assert result == [0, 10, 20]
        assert log == order

    asyncio.run(scenario())


def test_an_item_is_taken_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    present = ["a", "b", "c"]

    async def scenario() -> list[str]:
        asyncio.get_running_loop().call_soon(present.remove, "b")
        result, _ = await run_in_slices(map_in_steps(str.upper, (name for name in "abc" if name in present)))
        return result

    assert asyncio.run(scenario()) == ["A", "C"]


def test_pauses_are_not_counted_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr(slices, "PAUSE_S", 0.02)

    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        _, busy_s = await run_in_slices(map_in_steps(str.upper, "abcde"))
        return busy_s, loop.time() - began_s

    busy_s, took_s = asyncio.run(scenario())
    assert took_s >= busy_s + 5 * 0.02
