"""Simulated worker among other incarnations of its name: it behaves as the worker client does."""

import msgspec
import pytest

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import Write
from loadline.sim.engine import EngineKnobs, SimulatedEngine
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.timeline import Timeline
from loadline.sim.world.worker import SimulatedWorker, SimulatedWorkerKnobs
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply
from loadline.wire.subjects import Subjects
from tests.support.simulated_fleets import LINEAR

INCARNATION = 1_000
KEY = Keys("default").worker("m", "p", "w")


def record(incarnation: int = INCARNATION) -> WorkerRecord:
    return WorkerRecord("m", "p", "w", "decode", incarnation)


class WorkerHarness:
    """A bus, a store, a worker, and a leader that sends commands."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.bus, self.store = VirtualBus(self.timeline), VirtualStore(self.timeline)
        self.asking = self.bus.connection()
        self.worker = self.life(INCARNATION)
        self.pass_ms(100.0)

    def life(self, incarnation: int) -> SimulatedWorker:
        return SimulatedWorker(
            self.timeline,
            record(incarnation),
            SimulatedEngine(EngineKnobs("decode", 1_000), LINEAR),
            self.bus.connection(),
            self.store.connection(),
            peers=self.bus.connection(),
            knobs=SimulatedWorkerKnobs(),
            on_event=lambda _worker, _event: None,
            on_change=lambda _worker: None,
        )

    def pass_ms(self, wait_ms: float) -> None:
        self.timeline.run_until(self.timeline.now_ms + wait_ms)

    def held(self) -> int | None:
        """Return the incarnation under the key."""
        entry = self.store.keys.get(KEY)
        return msgspec.json.decode(entry.value, type=WorkerRecord).incarnation if entry else None

    def command(self, drain_id: str = "d", *, incarnation: int = INCARNATION, epoch: int = 1) -> list[DrainReply]:
        """Command a drain; return the answer of the first 100 ms."""
        command = DrainCommand(drain_id, "m", "p", "w", "decode", incarnation, epoch, 60_000)
        replies: list[DrainReply] = []

        async def request_drain() -> None:
            reply = await self.asking.request(Subjects("loadline").drain("m", "p", "w"), encode(command), 10.0)
            replies.append(msgspec.json.decode(reply, type=DrainReply))

        VirtualTask(request_drain())
        self.pass_ms(100.0)
        return replies


def test_a_command_for_a_later_incarnation_is_not_answered() -> None:
    harness = WorkerHarness()
    harness.life(INCARNATION + 1)
    assert harness.command(incarnation=INCARNATION + 1) == [DrainReply("d", accepted=True)]
    assert not harness.worker.draining


def test_commands_for_an_earlier_incarnation_or_of_an_earlier_leader_are_refused() -> None:
    harness = WorkerHarness()
    assert harness.command(incarnation=INCARNATION - 1) == [
        DrainReply("d", accepted=False, detail=f"already gone: this is incarnation {INCARNATION}")
    ]
    assert harness.command("a", epoch=2) == [DrainReply("a", accepted=True)]
    assert harness.command("b", epoch=1) == [
        DrainReply("b", accepted=False, detail="a command of epoch 2 was received")
    ]


@pytest.mark.parametrize("lease_lost", [True, False])
def test_the_key_of_a_later_incarnation_is_kept(lease_lost: bool) -> None:  # noqa: FBT001
    harness = WorkerHarness()
    assert harness.held() == INCARNATION
    if lease_lost:
        harness.store.revoke(harness.store.keys[KEY].lease_id)
    later = encode(record(INCARNATION + 1))
    harness.store.commit([], [Write(KEY, later, harness.store.grant(60))])
    harness.worker._register("starting")
    harness.pass_ms(30_000.0)
    assert harness.store.keys[KEY].value == later


def test_the_key_of_an_earlier_incarnation_is_overwritten() -> None:
    harness = WorkerHarness()
    harness.store.revoke(harness.store.keys[KEY].lease_id)
    harness.store.commit([], [Write(KEY, encode(record(INCARNATION - 1)), harness.store.grant(60))])
    harness.pass_ms(30_000.0)
    assert harness.held() == INCARNATION
