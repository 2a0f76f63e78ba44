"""Pauses: their writes to the store, and what is in force."""

import asyncio
from collections.abc import Sequence

import pytest

from loadline.core.vocabulary.effects import WritePause
from loadline.core.vocabulary.events import AnyEvent, PauseChanged, PauseRequested, PausesRead
from loadline.errors import OutcomeUnknown
from loadline.ports import CommitResult, Compare, Write
from tests.support.controller_harness import leading
from tests.support.memory import KEYS, MemoryStore, effect_runner


class SlowStore(MemoryStore):
    """Store that applies a transaction when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[asyncio.Future[None]] = []

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        released = asyncio.get_running_loop().create_future()
        self.calls.append(released)
        await released
        return await super().commit(compares, writes)


def write(request: int, lease_id: int, *, paused: bool) -> WritePause:
    return WritePause("m", paused, "ada", request, "all", lease_id)


async def lease_of_leader(store: MemoryStore) -> int:
    lease = await store.grant(10)
    store.server.commit([], [Write(KEYS.leader("all"), b"a", lease)])
    return lease


async def turn() -> None:
    """Let all tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_writes_of_a_model_follow_each_other_and_the_newest_one_is_last() -> None:
    async def scenario() -> None:
        store, events = SlowStore(), list[AnyEvent]()
        lease, runner = await lease_of_leader(store), effect_runner(events.append, store)
        orders = (write(number, lease, paused=number == 1) for number in (1, 2, 3))
        tasks = [asyncio.create_task(runner.perform(one)) for one in orders]
        await turn()
        assert len(store.calls) == 1, "the second one waits for the first one"
        store.calls[0].set_result(None)
        await turn()
        assert len(store.calls) == 2, "the second one is superseded"
        assert store.server.keys[KEYS.pause("m")].value == b"ada"
        store.calls[1].set_result(None)
        await asyncio.gather(*tasks)
        assert KEYS.pause("m") not in store.server.keys
        answers = [(one.paused, one.request) for one in events if isinstance(one, PauseChanged)]
        assert answers == [(True, 1), (False, 3)]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [OutcomeUnknown("the connection was reset"), KeyError("unexpected")])
def test_a_write_that_fails_does_not_lose_the_next_one(error: Exception) -> None:
    async def scenario() -> None:
        store, events = SlowStore(), list[AnyEvent]()
        lease, runner = await lease_of_leader(store), effect_runner(events.append, store)
        orders = (write(number, lease, paused=number == 1) for number in (1, 2))
        tasks = [asyncio.create_task(runner.perform(one)) for one in orders]
        await turn()
        store.calls[0].set_exception(error)
        await turn()
        repeated = isinstance(error, OutcomeUnknown)
        for call in (1, 2) if repeated else (1,):
            store.calls[call].set_result(None)
            await turn()
        await asyncio.gather(*tasks)
        answers = [one.request for one in events if isinstance(one, PauseChanged)]
        assert answers == ([1, 2] if repeated else [2])

    asyncio.run(scenario())


def test_a_late_write_of_a_former_leader_changes_nothing() -> None:
    async def scenario() -> None:
        store, events = SlowStore(), list[AnyEvent]()
        former = await lease_of_leader(store)
        late = asyncio.create_task(effect_runner(events.append, store).perform(write(1, former, paused=True)))
        await turn()
        await lease_of_leader(store)
        store.calls[0].set_result(None)
        await late
        assert (KEYS.pause("m") in store.server.keys, events) == (False, [])

    asyncio.run(scenario())


def test_only_the_leader_writes_a_pause() -> None:
    harness = leading()
    request = PauseRequested("m", paused=True, by="ada", request=4)
    (effect,) = harness.handle(request)
    assert effect == write(4, 7, paused=True)
    harness.lose_lease()
    assert harness.handle(request) == []


def test_an_earlier_change_that_is_reported_later_is_not_in_force() -> None:
    harness = leading()
    state = harness.controller.state
    harness.handle(PauseChanged("m", paused=False, revision=20, request=1))
    harness.handle(PauseChanged("m", paused=True, by="ada", revision=19))
    assert (state.paused, state.pauses_written) == ({}, 1)
    harness.handle(PauseChanged("m", paused=True, by="ada", revision=21))
    assert state.paused == {"m": "ada"}


def test_a_store_that_was_restored_has_the_pauses_in_force() -> None:
    harness = leading()
    harness.handle(PauseChanged("m", paused=True, by="ada", revision=20))
    harness.handle(PausesRead({}, 2, went_back=True))
    harness.handle(PauseChanged("m", paused=True, by="bob", revision=3))
    assert harness.controller.state.paused == {"m": "bob"}


def test_a_pause_that_was_written_after_a_snapshot_was_read_stays_in_force() -> None:
    harness = leading()
    harness.handle(PauseChanged("m", paused=True, by="ada", revision=20, request=1))
    harness.handle(PausesRead({}, 19))
    assert harness.controller.state.paused == {"m": "ada"}
    harness.handle(PausesRead({}, 21))
    assert harness.controller.state.paused == {}
