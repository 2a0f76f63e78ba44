"""Scaler for Dynamo's virtual connector in virtual time: timeouts, repetitions, refusals and a store that fails."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from loadline.client.resources import running
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.core.vocabulary.scalars import Role
from loadline.errors import OutcomeUnknown, StoreUnavailable
from loadline.ports import CommitResult, Compare, StoreChange, StoreSnapshot, Write
from loadline.scalers.dynamo_virtual import DynamoVirtualScaler
from loadline.scalers.dynamo_virtual_config import ConnectorModelKnobs, ConnectorPoolKnobs, DynamoVirtualKnobs
from loadline.wire.messages import DecisionApplied, ScalingDecision
from tests.support.decisions import decision
from tests.support.dynamo_clients import ClientDouble
from tests.support.memory import MemoryStore
from tests.support.virtual_time import run_virtual
from tests.unit.client.test_scaler_client import SUBJECTS, Agent

PREFIX = "v1/ns/planner/"
SETTLES_S = 0.001


class FailingStore(MemoryStore):
    """Store whose next commits fail, that records them, and that may be followed on asyncio."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []
        """Errors of calls that do not happen."""
        self.lost: list[Exception] = []
        """Errors of calls that happen."""
        self.commits: list[tuple[float, list[Write]]] = []
        self._followers: list[Callable[[list[StoreChange]], None]] = []

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        self.commits.append((asyncio.get_running_loop().time(), list(writes)))
        if self.failures:
            raise self.failures.pop(0)
        result = await super().commit(compares, writes)
        if result.committed:
            changes = [StoreChange(one.key, self.server.keys[one.key], result.revision) for one in writes]
            for on_changes in list(self._followers):
                on_changes(changes)
        if self.lost:
            raise self.lost.pop(0)
        return result

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[StoreSnapshot], None],
        on_changes: Callable[[list[StoreChange]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        on_connection(True)  # noqa: FBT003 - the port's callback
        on_snapshot(self.server.read(prefix))
        self._followers.append(on_changes)
        try:
            await asyncio.Event().wait()
        finally:
            self._followers.remove(on_changes)


class World(Agent):
    """Agent, store and client of one scaler."""

    def __init__(self) -> None:
        super().__init__()
        self.store = FailingStore()
        self.client = ClientDouble(self.store, "ns")

    def answered_last(self) -> DecisionApplied:
        subject = SUBJECTS.applied("m")
        answers = [payload for answered, payload in self.bus.published if answered == subject]
        return msgspec.json.decode(answers[-1], type=DecisionApplied)

    async def decide(self, sequence: int, prefill: int, decode: int) -> None:
        targets = PoolTarget("p", "prefill", prefill, 0), PoolTarget("d", "decode", decode, 0)
        await self.announce_and_settle(decision(1, sequence, *targets))

    async def announce_and_settle(self, announced: ScalingDecision) -> None:
        await self.announce(announced)
        await asyncio.sleep(SETTLES_S)


@asynccontextmanager
async def scaling() -> AsyncIterator[World]:
    world = World()
    pools = ConnectorPoolKnobs("p", "prefill"), ConnectorPoolKnobs("d", "decode")
    knobs = DynamoVirtualKnobs((ConnectorModelKnobs("m", "ns", pools),))
    async with (
        ScalerClient("s", ["m"], bus=world.bus) as scaler,
        running(DynamoVirtualScaler(knobs, scaler, world.store).run(), "scaler"),
    ):
        await asyncio.sleep(SETTLES_S)
        yield world


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with scaling() as world:
            await scenario(world)

    run_virtual(whole())


def test_the_next_decision_waits_1800_s_for_an_acknowledgement_and_no_longer() -> None:
    async def scenario(world: World) -> None:
        await world.decide(1, 2, 3)
        await world.decide(2, 2, 4)
        await asyncio.sleep(1_799)
        assert await world.client.get() == (2, 3, 0)
        assert world.answered_last().status == "progress"
        await asyncio.sleep(2)
        assert await world.client.get() == (2, 4, 1)
        await world.client.complete()
        await asyncio.sleep(SETTLES_S)
        assert world.answered_last().status == "done"

    run(scenario)


def test_a_decision_that_nobody_acknowledges_is_refused_after_1800_s_and_not_done_by_a_late_one() -> None:
    async def scenario(world: World) -> None:
        await world.decide(1, 2, 3)
        assert await world.client.get() == (2, 3, 0)
        await asyncio.sleep(1_799)
        assert world.answered_last().status == "progress"
        await asyncio.sleep(2)
        last = world.answered_last()
        assert (last.status, last.sequence) == ("refused", 1)
        assert last.detail.startswith("Dynamo's client did not acknowledge decision 0 within 1800 s. Start")
        await world.decide(2, 2, 4)
        await world.client.complete()
        await asyncio.sleep(1)
        assert await world.client.get() == (2, 4, 1)
        assert world.answered_last().status == "progress"

    run(scenario)


def test_an_unacknowledged_decision_is_written_every_10_s_for_clients_that_wake_for_writes_only() -> None:
    async def scenario(world: World) -> None:
        await world.decide(1, 2, 3)
        await asyncio.sleep(31)
        ids = [[write.key.removeprefix(PREFIX) for write in writes] for _, writes in world.store.commits]
        assert ids == [["num_prefill_workers", "num_decode_workers", "decision_id"], *[["decision_id"]] * 3]
        assert await world.client.get() == (2, 3, 0)
        await world.client.complete()
        await asyncio.sleep(60)
        assert len(world.store.commits) == 5
        assert world.answered_last().status == "done"

    run(scenario)


def test_a_failing_store_is_explained_and_asked_again_with_longer_waits() -> None:
    async def scenario(world: World) -> None:
        world.store.failures = [StoreUnavailable("etcd is away")] * 8
        await world.decide(1, 2, 3)
        last = world.answered_last()
        assert (last.status, last.detail) == ("progress", "Dynamo's etcd: etcd is away")
        await asyncio.sleep(60)
        assert await world.client.get() == (2, 3, 0)
        times = [time_s for time_s, _ in world.store.commits[:9]]
        waits = [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)]
        assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]

    run(scenario)


def test_a_write_of_unknown_outcome_is_one_decision() -> None:
    async def scenario(world: World) -> None:
        world.store.lost = [OutcomeUnknown("no answer")]
        await world.decide(1, 2, 3)
        await asyncio.sleep(5)
        assert await world.client.get() == (2, 3, 0)
        await world.client.complete()
        await asyncio.sleep(SETTLES_S)
        assert world.answered_last().status == "done"

    run(scenario)


@pytest.mark.parametrize(
    ("pool", "role", "detail"),
    [("x", "decode", "pool x is not configured"), ("p", "decode", "pool p has the role decode, and prefill in")],
)
def test_a_decision_for_other_pools_is_refused_and_changes_nothing(pool: str, role: Role, detail: str) -> None:
    async def scenario(world: World) -> None:
        await world.announce_and_settle(decision(1, 1, PoolTarget(pool, role, 3, 2)))
        last = world.answered_last()
        assert last.status == "refused"
        assert last.detail.startswith(detail)
        assert not world.store.commits

    run(scenario)


def test_the_keys_of_another_writer_are_not_overwritten_unread() -> None:
    async def scenario(world: World) -> None:
        world.store.server.commit([], [Write(f"{PREFIX}decision_id", b"5"), Write(f"{PREFIX}scaled_decision_id", b"5")])
        await world.decide(1, 2, 3)
        await asyncio.sleep(SETTLES_S)
        assert (await world.client.get())[2] == 5

    run(scenario)
