"""Coroutines in virtual time."""

import asyncio

import pytest

from loadline.sim.world.tasks import VirtualFuture, VirtualTask
from loadline.sim.world.timeline import Timeline


def test_a_coroutine_resumes_when_its_promise_is_settled() -> None:
    promise, seen = VirtualFuture[int](), list[object]()

    async def work() -> None:
        seen.append("begun")
        seen.append(await promise)

    task = VirtualTask(work(), lambda: seen.append("ended"))
    assert (seen, task.done) == (["begun"], False)
    promise.set_result(7)
    assert (seen, task.done) == (["begun", 7, "ended"], True)


def test_a_promise_is_settled_once() -> None:
    promise = VirtualFuture[int]()
    promise.set_result(1)
    promise.set_result(2)
    promise.set_exception(ValueError("late"))
    seen = list[int]()

    async def work() -> None:
        seen.append(await promise)

    VirtualTask(work())
    assert seen == [1]


def test_a_failure_is_raised_where_it_is_awaited() -> None:
    promise, seen = VirtualFuture[int](), list[str]()

    async def work() -> None:
        try:
            await promise
        except ValueError as error:
            seen.append(str(error))

    VirtualTask(work())
    promise.set_exception(ValueError("gone"))
    assert seen == ["gone"]


def test_a_killed_task_does_not_resume() -> None:
    promise, seen = VirtualFuture[int](), list[int]()

    async def work() -> None:
        seen.append(await promise)

    task = VirtualTask(work())
    task.kill()
    promise.set_result(1)
    assert (seen, task.done) == ([], True)


def test_a_task_may_kill_itself() -> None:
    seen, tasks = list[str](), list[VirtualTask]()

    async def work() -> None:
        await kept_later
        tasks[0].kill()
        seen.append("to its next wait")
        await VirtualFuture[None]()
        seen.append("never")

    kept_later = VirtualFuture[None]()
    tasks.append(VirtualTask(work()))
    kept_later.set_result(None)
    assert (seen, tasks[0].done) == (["to its next wait"], True)


def test_an_error_is_not_swallowed() -> None:
    async def work() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        VirtualTask(work())


def test_only_promises_can_be_awaited() -> None:
    with pytest.raises(TypeError, match="virtual time"):
        VirtualTask(asyncio.sleep(0))


def test_callbacks_run_in_order_of_their_time_then_of_scheduling() -> None:
    timeline, seen = Timeline(), list[tuple[str, float]]()

    def do(name: str) -> None:
        seen.append((name, timeline.now_ms))

    timeline.call_at(20.0, lambda: do("c"))
    timeline.call_at(10.0, lambda: do("a"))
    timeline.call_at(10.0, lambda: timeline.call_at(5.0, lambda: do("what is past is done next")))
    timeline.call_at(10.0, lambda: do("b"))
    timeline.call_at(21.0, lambda: do("too late"))
    timeline.run_until(20.5)
    assert seen == [("a", 10.0), ("b", 10.0), ("what is past is done next", 10.0), ("c", 20.0)]
    assert timeline.now_ms == 20.5


def test_each_purpose_has_its_own_random_stream() -> None:
    one, other = Timeline(3), Timeline(3)
    one.rng("more").random()
    assert one.rng("bus").random() == other.rng("bus").random()
    assert one.rng("bus").random() != one.rng("store").random()
    assert one.rng("bus").random() != Timeline(4).rng("bus").random()
