"""Calls in threads that do not keep a process from ending."""

import asyncio
import threading

import pytest

from loadline.adapters.daemon_thread import call_in_daemon
from tests.waiting import until, until_true


def test_a_call_returns_or_raises_what_its_function_does() -> None:
    async def scenario() -> None:
        assert await call_in_daemon(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await call_in_daemon(lambda: 1 // 0)

    asyncio.run(scenario())


def test_a_loop_ends_while_a_call_hangs_and_its_late_result_is_dropped() -> None:
    began, released, done = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        released.wait(5.0)
        done.set()

    async def scenario() -> None:
        calling = asyncio.create_task(call_in_daemon(hang))
        await until(began.is_set)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)

    asyncio.run(scenario())
    assert not done.is_set(), "the end waited for the call"
    threads = threading.active_count()
    released.set()
    until_true(lambda: threading.active_count() < threads)  # a warning of the thread would fail the test
