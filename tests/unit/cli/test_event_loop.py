"""Coroutines of commands end with SIGTERM, after the step that it came in."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from loadline.cli import event_loop
from loadline.cli.exit_codes import TERMINATED


def raising(*_: Any) -> None:
    raise AssertionError("the handler of the command has interrupted a step of the loop")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, raising)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_result_is_returned_and_the_handler_restored() -> None:
    async def main() -> int:
        return 3

    assert event_loop.run(main()) == 3
    assert signal.getsignal(signal.SIGTERM) is raising


def test_sigterm_interrupts_no_step_and_lets_the_coroutine_clean_up() -> None:
    steps = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("whole step")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    with pytest.raises(SystemExit) as ended:
        event_loop.run(main())
    assert (ended.value.code, steps) == (TERMINATED, ["whole step", "cleaned up"])
    assert signal.getsignal(signal.SIGTERM) is raising


def test_a_cancellation_that_is_no_signal_remains_one() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        event_loop.run(main())
