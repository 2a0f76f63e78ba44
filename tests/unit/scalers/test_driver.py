"""Driver of a scaler on a platform in memory: decisions, drains, faults, and an end at every point."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from loadline.client.resources import running
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget, Victim, VictimRule
from loadline.scalers.driver import ReplicaScaler
from loadline.scalers.platform import PoolKey
from loadline.wire.codec import encode
from loadline.wire.messages import DecisionApplied, DrainReport, ScalingDecision
from tests.support.decisions import decision
from tests.support.memory import MemoryBus
from tests.support.replicas import MemoryPlatform, ReplicaPool, refusing
from tests.support.virtual_time import run_virtual
from tests.unit.client.test_scaler_client import SUBJECTS
from tests.waiting import until

KEY = PoolKey("m", "p")


class Killed(Exception):
    """End of the scaler at one point of its work."""


class Fleet:
    """Agent that announces a decision until it is done, and workers that drain once it is accepted."""

    def __init__(self, rule: VictimRule, count: int) -> None:
        self.bus = MemoryBus()
        self.pool = ReplicaPool(rule, count)
        self.platform = MemoryPlatform({KEY: self.pool})
        self.rule = rule
        self.decided = count
        """Replicas of the last decision."""
        self.current: ScalingDecision | None = None
        self.drained: set[str] = set()
        self.drain_s = 1.0
        self.report_s = 1.0
        self._answers: list[DecisionApplied] = []
        self._read = 0

    def decide(self, sequence: int, replicas: int, *victims: str, drain_ttl_ms: int = 600_000) -> None:
        named = tuple(Victim(name, 1) for name in victims)
        wanted = PoolTarget("p", "decode", replicas, self.decided, named, victim_rule=self.rule)
        self.decided = replicas
        self.current = decision(1, sequence, wanted, drain_ttl_ms=drain_ttl_ms)
        self.announce()

    def announce(self) -> None:
        assert self.current is not None
        self.bus.publish_now(SUBJECTS.decision("m"), encode(self.current))

    def answers(self) -> list[DecisionApplied]:
        published, self._read = self.bus.published[self._read :], len(self.bus.published)
        for subject, payload in published:
            if subject == SUBJECTS.applied("m"):
                self._answers.append(msgspec.json.decode(payload, type=DecisionApplied))
        sequence = self.current.sequence if self.current else 0
        return [answer for answer in self._answers if answer.sequence == sequence]

    def statuses(self) -> list[str]:
        return [answer.status for answer in self.answers()]

    def details(self) -> list[str]:
        return [answer.detail for answer in self.answers()]

    async def act(self) -> None:
        """Announce, drain the victims one after the other, and report the drained ones, until cancelled."""
        drain_at_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(self.report_s)
            if self.current is None:
                continue
            if "done" not in self.statuses():
                self.announce()
            if "accepted" in self.statuses() and asyncio.get_running_loop().time() >= drain_at_s + self.drain_s:
                drain_at_s = asyncio.get_running_loop().time()
                names = [victim.worker for victim in self.current.targets[0].victims]
                self.drained.update([name for name in names if name not in self.drained][:1])
            for name in sorted(self.drained & set(self.pool.workers)):
                self.report(name)

    def report(self, name: str) -> None:
        self.bus.publish_now(SUBJECTS.drained("m", "p", name), encode(DrainReport("m", "p", name, 1)))

    @asynccontextmanager
    async def scaler(self) -> AsyncIterator["asyncio.Task[None]"]:
        async with ScalerClient("s", ["m"], bus=self.bus) as client:
            task = asyncio.create_task(ReplicaScaler(self.platform, client).run(asyncio.Event()))
            try:
                yield task
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError, Killed):
                    await task

    @asynccontextmanager
    async def acting(self) -> AsyncIterator[None]:
        """Run the workers, the agent and the platform's controller."""
        async with (
            asyncio.timeout(600),
            running(self.act(), "fleet"),
            running(self.platform.run(), "controller"),
        ):
            yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run a scaler too."""
        async with self.acting(), self.scaler():
            yield

    async def until_done(self) -> None:
        await until(lambda: self.statuses()[-1:] == ["done"])


def test_a_pool_grows_at_once_and_the_decision_is_done_when_its_workers_are_ready() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        async with fleet.running():
            fleet.decide(1, 3)
            await fleet.until_done()
        assert fleet.platform.requested() == [3]
        assert fleet.answers()[-1].observed == {"p": 3}
        assert fleet.statuses()[0] == "accepted"
        assert "p: 1 of 3 replicas are ready" in fleet.details()

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("rule", "victims"), [("named", ("w0", "w2")), ("newest", ("w2", "w3")), ("highest_ordinal", ("w3", "w2"))]
)
def test_victims_are_removed_as_they_drain(rule: VictimRule, victims: tuple[str, ...]) -> None:
    async def scenario() -> None:
        fleet = Fleet(rule, 4)
        async with fleet.running():
            fleet.decide(1, 2, *victims)
            await fleet.until_done()
        assert set(fleet.pool.removed) == set(victims)
        assert fleet.platform.requested()[-1] == 2
        assert any("must drain" in detail for detail in fleet.details())
        assert {rule} == {answer.victims["p"] for answer in fleet.answers()}

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("rule", "victims"), [("named", ("w0", "w2")), ("newest", ("w3", "w2")), ("highest_ordinal", ("w3", "w2"))]
)
def test_a_drained_worker_that_a_newer_decision_does_not_name_is_removed(
    rule: VictimRule, victims: tuple[str, str]
) -> None:
    """The agent counts it no more, but it waits for its end: no scaler ran when it was drained."""

    async def scenario() -> None:
        fleet = Fleet(rule, 4)
        async with fleet.acting():
            async with fleet.scaler():
                fleet.decide(1, 3, victims[0])
                await until(lambda: "accepted" in fleet.statuses())
            await until(lambda: victims[0] in fleet.drained)
            fleet.decide(2, 2, victims[1])
            async with fleet.scaler():
                await fleet.until_done()
        assert set(fleet.pool.removed) == set(victims) == fleet.drained
        assert fleet.pool.replicas == 2

    run_virtual(scenario())


def test_a_drained_worker_that_reports_no_more_may_be_another_process() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 3)
        async with fleet.running():
            fleet.report("w0")
            await asyncio.sleep(4)
            fleet.decide(1, 2, "w1")
            await asyncio.sleep(60)
            assert fleet.pool.removed == ["w1"]

    run_virtual(scenario())


def test_victims_are_removed_after_the_deadline() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 3)
        fleet.drain_s = 10_000
        async with fleet.running():
            fleet.decide(1, 1, "w0", "w1", drain_ttl_ms=0)
            await fleet.until_done()
        assert fleet.pool.workers == ["w2"]

    run_virtual(scenario())


@pytest.mark.parametrize("rule", ["named", "newest", "highest_ordinal"])
@pytest.mark.parametrize("midway", [False, True])
def test_a_scaler_that_ends_between_any_two_steps_is_continued_by_another(rule: VictimRule, midway: bool) -> None:  # noqa: FBT001
    async def scenario(point: int) -> bool:
        """Return True if the first scaler came to the point at which it ends."""
        fleet = Fleet(rule, 4)
        steps = 0

        def fault(_call: str) -> None:
            nonlocal steps
            steps += 1
            if steps == point:
                raise Killed

        def removed_early() -> list[str]:
            return [name for name in fleet.pool.removed if name not in fleet.drained]

        fleet.platform.fault = fault
        async with fleet.acting():
            async with fleet.scaler() as first:
                fleet.decide(1, 2, "w3", "w2")
                await until(lambda: first.done() or "w3" in fleet.pool.removed or "done" in fleet.statuses())
                if midway and rule == "named":
                    fleet.decide(2, 5, "w2")
                elif midway:
                    fleet.decide(2, 1, *(name for name in ("w3", "w2", "w1") if name in fleet.pool.workers))
                await until(lambda: first.done() or fleet.statuses()[-1:] == ["done"])
                killed = first.done()
            fleet.platform.fault = lambda _call: None
            async with fleet.scaler():
                await asyncio.sleep(0.5)  # its memory is empty, and drained workers report every second
                fleet.announce()
                await fleet.until_done()
                await asyncio.sleep(3)
        assert removed_early() == []
        assert fleet.current is not None
        assert len(fleet.pool.workers) == fleet.pool.replicas == fleet.current.targets[0].replicas
        assert max([4, *fleet.platform.requested()]) <= (6 if midway else 4)
        return killed

    point = 1
    while run_virtual(scenario(point)):
        point += 1
    assert point > 8


def test_workers_that_a_quota_forbids_are_reported() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        fleet.pool.quota, fleet.pool.detail = 2, "exceeded quota: gpus"
        async with fleet.running():
            fleet.decide(1, 4)
            await asyncio.sleep(60)
            assert fleet.answers()[-1].detail == "p: 2 of 4 replicas are ready: exceeded quota: gpus"
            assert fleet.answers()[-1].observed == {"p": 2}
            fleet.pool.quota = 4
            await fleet.until_done()

    run_virtual(scenario())


def test_reasons_are_reported_after_a_decision_is_done() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 2)
        async with fleet.running():
            fleet.decide(1, 2)
            await fleet.until_done()
            fleet.pool.detail = "pod w0 waits: CrashLoopBackOff"
            fleet.platform.change()
            await until(lambda: fleet.details()[-1] == "p: pod w0 waits: CrashLoopBackOff")
            fleet.platform.fault = refusing("the API server is away", "observe")
            fleet.platform.change()
            await until(lambda: fleet.details()[-1] == "p: the API server is away")
            fleet.pool.detail = ""
            fleet.platform.fault = lambda _call: None
            await until(lambda: not fleet.details()[-1])
            first = fleet.statuses().index("done")
            assert set(fleet.statuses()[first:]) == {"done"}
            assert all(answer.observed == {"p": 2} for answer in fleet.answers()[first:])

    run_virtual(scenario())


def test_a_newer_decision_stops_what_an_older_one_was_about_to_remove() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 3)

        def fault(call: str) -> None:
            if call == "prefer_removal" and fleet.current is not None and fleet.current.sequence == 1:
                fleet.decide(2, 3)

        fleet.platform.fault = fault
        async with fleet.running():
            fleet.decide(1, 1, "w0", "w1", drain_ttl_ms=0)
            await fleet.until_done()
            assert fleet.answers()[-1].sequence == 2
        assert fleet.platform.requested() == []

    run_virtual(scenario())


def test_lost_replicas_are_requested_again_and_additional_ones_are_left_to_the_agent() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 3)
        async with fleet.running():
            fleet.decide(1, 3)
            await fleet.until_done()
            fleet.pool.replicas = 1  # such as by the backup of an API server
            fleet.platform.change()
            await until(lambda: fleet.platform.requested() == [3])
            fleet.pool.replicas = 5
            fleet.platform.change()
            await asyncio.sleep(100)
        assert fleet.platform.requested() == [3]

    run_virtual(scenario())


def test_decisions_that_the_platform_cannot_carry_out_are_refused() -> None:
    async def scenario() -> None:
        fleet = Fleet("highest_ordinal", 3)
        async with fleet.running():
            fleet.rule = "named"
            fleet.decide(1, 2, "w0")
            await until(lambda: fleet.statuses() == ["refused"])
            assert fleet.answers()[-1].victims == {"p": "highest_ordinal"}
            fleet.current = decision(1, 2, PoolTarget("elsewhere", "decode", 1, 1))
            fleet.announce()
            await until(lambda: fleet.statuses()[-1:] == ["refused"])
            assert "elsewhere" in fleet.details()[-1]
        assert fleet.platform.calls == [("observe", None)], "only the existing replicas are read"

    run_virtual(scenario())


def test_a_crash_of_the_platform_ends_the_scaler() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)

        def fault(_call: str) -> None:
            raise Killed

        fleet.platform.fault = fault
        async with fleet.acting(), ScalerClient("s", ["m"], bus=fleet.bus) as client:
            run = asyncio.create_task(ReplicaScaler(fleet.platform, client).run(asyncio.Event()))
            await asyncio.sleep(0)
            fleet.decide(1, 2)
            with pytest.raises(Killed):
                await run

    run_virtual(scenario())


def test_a_scaler_ends_when_it_is_stopped() -> None:
    async def scenario() -> None:
        fleet, stop = Fleet("named", 1), asyncio.Event()
        async with ScalerClient("s", ["m"], bus=fleet.bus) as client:
            run = asyncio.create_task(ReplicaScaler(fleet.platform, client).run(stop))
            await asyncio.sleep(1)
            stop.set()
            await run
        assert fleet.platform.requested() == []

    run_virtual(scenario())
