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
    with asyncio.Runner() as runner:
        for _ in range(2):
            assert event_loop.run(main(), runner) == 3
            assert signal.getsignal(signal.SIGTERM) is raising
    assert signal.getsignal(signal.SIGTERM) is raising


def test_sigterm_ends_the_program_from_a_loop_of_several_coroutines() -> None:
    async def main() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    async def close() -> int:
        return 3

    with asyncio.Runner() as runner:
        with pytest.raises(SystemExit) as ended:
            event_loop.run(main(), runner)
        assert event_loop.run(close(), runner) == 3
    assert ended.value.code == TERMINATED


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


@pytest.mark.parametrize("error", [None, OSError("cleanup")])
def test_a_coroutine_that_takes_a_cancellation_for_its_end_or_fails_by_it_ends_the_program(
    error: OSError | None,
) -> None:
    """Textual's ``run_async`` returns."""

    async def main() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if error is not None:
                raise error from None
        return 0

    with pytest.raises(SystemExit) as ended:
        event_loop.run(main())
    assert ended.value.code == TERMINATED


def test_a_second_sigterm_does_not_cancel_the_clean_up() -> None:
    steps = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.01)
            steps.append("cleaned up")

    with pytest.raises(SystemExit):
        event_loop.run(main())
    assert steps == ["cleaned up"]


def test_sigterm_while_the_loop_is_closed_ends_the_program() -> None:
    async def main() -> int:
        async def left() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(left())
        await asyncio.sleep(0)
        assert not task.done()
        return 0

    with pytest.raises(SystemExit) as ended:
        event_loop.run(main())
    assert ended.value.code == TERMINATED


def test_a_cancellation_that_is_no_signal_remains_one() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        event_loop.run(main())
