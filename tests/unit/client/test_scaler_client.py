"""Scaler client on a bus in memory: the decisions that it returns, and its answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadline.client import scaler as scaler_module
from loadline.client.fence import CHALLENGE_S
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget, Victim
from loadline.ports import Bus
from loadline.wire.codec import encode
from loadline.wire.messages import AnnounceReply, AnnounceRequest, DecisionApplied, DrainReport, ScalingDecision
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.memory import MemoryBus
from tests.waiting import until

SUBJECTS = Subjects("loadline")


class Agent:
    """Agent's side of the bus: announces decisions and reads the answers."""

    def __init__(self) -> None:
        self.bus = MemoryBus()

    async def announce(self, announced: ScalingDecision) -> None:
        await self.bus.publish(SUBJECTS.decision(announced.model), encode(announced))

    async def drained(self, worker: str, incarnation: int = 1, model: str = "m") -> None:
        await self.bus.publish(
            SUBJECTS.drained(model, "p", worker), encode(DrainReport(model, "p", worker, incarnation))
        )

    @property
    def applied(self) -> list[DecisionApplied]:
        return [
            msgspec.json.decode(payload, type=DecisionApplied)
            for subject, payload in self.bus.published
            if subject == SUBJECTS.applied("m")
        ]

    @property
    def answers(self) -> list[tuple[int, int, str]]:
        return [(answer.epoch, answer.sequence, answer.status) for answer in self.applied]

    async def answered(self, *expected: tuple[int, int, str]) -> None:
        await until(lambda: self.answers == list(expected), f"{expected}, but there is {self.answers}")


@asynccontextmanager
async def entered(*models: str) -> AsyncIterator[tuple[Agent, ScalerClient]]:
    agent = Agent()
    async with asyncio.timeout(60), ScalerClient("s", models or ("m",), bus=agent.bus) as scaler:
        yield agent, scaler


def test_a_decision_is_returned_and_answered() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            wanted = PoolTarget("p", "decode", 3, 2, (Victim("v", 1),))
            await agent.announce(decision(1, 1, wanted))
            order = await anext(scaler)
            assert (order.model, order.targets) == ("m", {"p": wanted})
            assert not order.expired
            assert not order.drain_expired
            await scaler.accept(order)
            await scaler.progress(order, {"p": 2})
            await scaler.complete(order, {"p": 3})
            await agent.answered((1, 1, "accepted"), (1, 1, "progress"), (1, 1, "done"))
            last = msgspec.json.decode(agent.bus.published[-1][1], type=DecisionApplied)
            assert (last.decision_id, last.scaler, last.observed) == ("m-1-1", "s", {"p": 3})

    asyncio.run(scenario())


def test_answers_declare_the_rules_until_others_are_given_and_say_why_a_decision_waits() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(1, 1))
            order = await anext(scaler)
            await scaler.accept(order, {"p": "newest"})
            await scaler.progress(order, {"p": 1}, "quota exceeded")
            await agent.announce(decision(1, 2))
            await scaler.refuse(await anext(scaler), "no image")
            await agent.announce(decision(1, 3))
            await scaler.complete(await anext(scaler), {"p": 3}, {})
            await until(lambda: len(agent.answers) == 4)
            found = [
                msgspec.json.decode(payload, type=DecisionApplied)
                for subject, payload in agent.bus.published
                if subject == SUBJECTS.applied("m")
            ]
            assert [(one.victims, one.detail) for one in found] == [
                ({"p": "newest"}, ""),
                ({"p": "newest"}, "quota exceeded"),
                ({"p": "newest"}, "no image"),
                ({}, ""),
            ]

    asyncio.run(scenario())


def test_a_decision_whose_leader_does_not_know_the_counts_in_force_is_refused_with_them() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(1, 7, PoolTarget("p", "decode", 8, 2)))
            await scaler.accept(await anext(scaler))
            following = asyncio.create_task(anext(scaler))
            await agent.announce(decision(2, 1, PoolTarget("p", "decode", 3, 2)))
            await agent.answered((1, 7, "accepted"), (2, 1, "refused"))
            await agent.announce(decision(2, 1, PoolTarget("p", "decode", 3, 2)))
            await agent.answered((1, 7, "accepted"), (2, 1, "refused"), (2, 1, "refused"))
            assert [one.in_force for one in agent.applied] == [{}, {"p": 8}, {"p": 8}]
            assert (
                agent.applied[-1].detail
                == "made without knowing the counts in force, from which the agent goes on: p 8"
            )
            await agent.announce(decision(2, 2, PoolTarget("p", "decode", 8, 8)))
            assert (await following).decision.sequence == 2

    asyncio.run(scenario())


def test_a_stale_decision_is_refused_with_the_counts_in_force() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(2, 7, PoolTarget("p", "decode", 8, 2)))
            await scaler.accept(await anext(scaler))
            await agent.announce(decision(1, 5, PoolTarget("p", "decode", 2, 2)))
            await agent.answered((2, 7, "accepted"), (1, 5, "refused"))
            assert agent.applied[-1].in_force == {"p": 8}

    asyncio.run(scenario())


def test_a_refused_decision_is_not_in_force() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(1, 1, PoolTarget("p", "decode", 8, 2)))
            await scaler.refuse(await anext(scaler), "no quota")
            await agent.announce(decision(2, 1, PoolTarget("p", "decode", 3, 2)))
            assert (await anext(scaler)).decision.epoch == 2

    asyncio.run(scenario())


def test_a_repeated_decision_is_answered_again_and_not_returned() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(1, 1))
            await agent.announce(decision(1, 1))
            order = await anext(scaler)
            await scaler.accept(order)
            await agent.announce(decision(1, 1))
            await agent.answered((1, 1, "accepted"), (1, 1, "accepted"))
            await agent.announce(decision(1, 2))
            assert (await anext(scaler)).decision.sequence == 2

    asyncio.run(scenario())


def test_a_repeated_decision_gets_no_answer_of_an_earlier_decision() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(1, 1))
            await scaler.accept(await anext(scaler))
            await agent.announce(decision(1, 2))
            await agent.announce(decision(1, 2))
            await until(lambda: not scaler._repeat, "the client has handled the repetition")
            await scaler.accept(await anext(scaler))
            await agent.answered((1, 1, "accepted"), (1, 2, "accepted"))

    asyncio.run(scenario())


def test_a_lost_answer_is_repeated_at_the_next_announcement() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(1, 1))
            order = await anext(scaler)
            agent.bus.connected = False
            await scaler.complete(order, {"p": 1})
            agent.bus.connected = True
            assert agent.answers == []
            await agent.announce(decision(1, 1))
            await agent.answered((1, 1, "done"))

    asyncio.run(scenario())


def test_stale_and_expired_are_refused() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(2, 5))
            await agent.announce(decision(1, 9))
            await agent.answered((1, 9, "refused"))
            await agent.announce(decision(2, 6, ttl_ms=0))
            await agent.answered((1, 9, "refused"), (2, 6, "refused"))
            await agent.announce(decision(2, 7, PoolTarget("p", "decode", 1, 1)))
            assert (await anext(scaler)).decision.sequence == 7

    asyncio.run(scenario())


def test_a_decision_that_expires_in_the_queue_is_refused() -> None:
    async def scenario() -> None:
        async with entered("m", "n") as (agent, scaler):
            await agent.announce(decision(1, 1))
            # A repeated announcement has an earlier expiry.
            await agent.announce(decision(1, 1, ttl_ms=1))
            await until(lambda: scaler._waiting["m"].expired, "expiry")
            await agent.announce(decision(1, 1, model="n"))
            assert (await anext(scaler)).decision.model == "n"
            await agent.answered((1, 1, "refused"))

    asyncio.run(scenario())


def test_only_the_newest_decision_of_a_model_waits_and_models_take_turns() -> None:
    async def scenario() -> None:
        async with entered("m", "n") as (agent, scaler):
            for sequence in range(1, 1_000):
                await agent.announce(decision(1, sequence))
            await agent.announce(decision(1, 1, model="n"))
            assert len(scaler._waiting) == 2
            handed_out = [(await anext(scaler)).decision for _ in range(2)]
            assert [(one.model, one.sequence) for one in handed_out] == [("m", 999), ("n", 1)]

    asyncio.run(scenario())


def test_an_answer_to_an_outdated_decision_is_dropped() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.announce(decision(1, 1))
            first = await anext(scaler)
            await agent.announce(decision(1, 2))
            await scaler.complete(first, {})
            await scaler.accept(await anext(scaler))
            await agent.answered((1, 2, "accepted"))

    asyncio.run(scenario())


def test_invalid_messages_are_counted_and_ignored() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            await agent.bus.publish(SUBJECTS.decision("m"), b"\xff\x00{")
            await agent.bus.publish(SUBJECTS.decision("m"), encode(decision(7, 7, model="other")))
            await agent.bus.publish(SUBJECTS.drained("m", "p", "w"), b"[]")
            await agent.bus.publish(SUBJECTS.drained("m", "p", "w"), encode(DrainReport("m", "p", "somebody-else", 1)))
            assert scaler.ignored == 4
            assert not scaler.drained("m", "p", "w")
            await agent.announce(decision(1, 1))
            assert (await anext(scaler)).decision.sequence == 1

    asyncio.run(scenario())


def test_a_drain_report_of_the_incarnation_ends_the_wait() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            waits = [asyncio.create_task(scaler.wait_drained("m", "p", "w", 60, incarnation=5)) for _ in range(2)]
            await agent.drained("w", incarnation=4)
            await asyncio.sleep(0)
            assert scaler.drained("m", "p", "w")
            assert not scaler.drained("m", "p", "w", incarnation=5)
            await agent.drained("w", incarnation=5)
            assert await asyncio.gather(*waits) == [True, True]
            assert not await scaler.wait_drained("m", "p", "never", 0.01)
            await agent.drained("x", model="other")
            assert not scaler.drained("other", "p", "x")

    asyncio.run(scenario())


def test_drain_reports_of_another_pool_or_a_later_incarnation_are_ignored() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            forged = encode(DrainReport("m", "other", "w", 1))
            await agent.bus.publish(SUBJECTS.drained("m", "other", "w"), forged)
            await agent.bus.publish(SUBJECTS.drained("m", "p", "w"), forged)
            await agent.drained("w", incarnation=2**53)
            assert not scaler.drained("m", "p", "w")
            assert scaler.ignored == 2
            await agent.bus.publish(SUBJECTS.by_name("drained", "w"), encode(DrainReport("m", "p", "w", 1)))
            assert scaler.drained("m", "p", "w", incarnation=1), "the earlier subject is read as well"

    asyncio.run(scenario())


def test_the_memory_of_drained_workers_is_bounded() -> None:
    async def scenario() -> None:
        async with entered() as (agent, scaler):
            for number in range(scaler_module.DRAINED_WORKERS_MAX + 5):
                await agent.drained(f"w-{number}")
            assert len(scaler._drained) == scaler_module.DRAINED_WORKERS_MAX
            assert not scaler.drained("m", "p", "w-4")
            assert scaler.drained("m", "p", "w-5")

    asyncio.run(scenario())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=30))
def test_returned_decisions_only_rise_for_any_order_of_announcements(steps: list[tuple[int, int, bool]]) -> None:
    async def scenario() -> None:
        handed_out = []
        async with entered() as (agent, scaler):
            for epoch, sequence, take in steps:
                await agent.announce(decision(epoch, sequence))
                if take and scaler._waiting:
                    order = await anext(scaler)
                    handed_out.append((order.decision.epoch, order.decision.sequence))
                    await scaler.accept(order)
        assert handed_out == sorted(set(handed_out))

    asyncio.run(scenario())


def test_current_decisions_are_requested_until_a_leader_answers() -> None:
    async def scenario() -> None:
        agent, requests = Agent(), []

        async def answer(payload: bytes) -> bytes:
            requests.append(msgspec.json.decode(payload, type=AnnounceRequest))
            return encode(AnnounceReply(accepted=len(requests) > 1))

        await agent.bus.answer(SUBJECTS.api("announce"), answer)
        async with ScalerClient("s", ("m", "n"), bus=agent.bus):
            await until(lambda: len(requests) == 2, "asked again after a refusal")
        assert requests[-1] == AnnounceRequest(("m", "n"), "s")

    asyncio.run(scenario())


def test_a_model_that_nobody_leads_stops_no_confirmation_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed: list[tuple[str, ...]] = []

    async def request(_bus: Bus, _subjects: Subjects, models: Sequence[str], _by: str) -> frozenset[str]:
        if tuple(models) == ("m",):
            await asyncio.sleep(0.01)
            return frozenset()
        confirmed.append(tuple(models))
        return frozenset(models)

    async def scenario() -> None:
        async with entered("m", "n") as (agent, scaler):
            await until(lambda: confirmed == [("m", "n")], "the first request")
            for model in ("m", "n"):
                await agent.announce(decision(2, 1, model=model))
                await anext(scaler)
                await agent.announce(decision(1, 1, model=model))
            await until(lambda: confirmed == [("m", "n"), ("n",)], f"{confirmed}")

    monkeypatch.setattr(scaler_module, "request_announcements", request)
    asyncio.run(scenario())


def test_the_present_leader_is_asked_before_stale_decisions_lower_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former leader whose etcd was replaced by a backup decides on; the present one has nothing new to announce."""
    clock_s = 0.0

    async def scenario() -> None:
        nonlocal clock_s
        asked: list[tuple[str, ...]] = []
        async with entered("m", "n") as (agent, scaler):

            async def announce_again(payload: bytes) -> bytes:
                asked.append(msgspec.json.decode(payload, type=AnnounceRequest).models)
                if clock_s:
                    await agent.announce(decision(2, 7))
                return encode(AnnounceReply(accepted=True))

            await agent.bus.answer(SUBJECTS.api("announce"), announce_again)
            await until(lambda: asked == [("m", "n")], "the first request")
            await agent.announce(decision(2, 7))
            await scaler.complete(await anext(scaler), {"p": 2})
            for sequence in range(10):
                clock_s += CHALLENGE_S
                await agent.announce(decision(1, sequence))
                await until(lambda: len(asked) > sequence + 1, f"{asked}")  # noqa: B023 - awaited here
            assert set(asked[1:]) == {("m",)}
            assert {status for epoch, _, status in agent.answers if epoch == 1} == {"refused"}

    monkeypatch.setattr(scaler_module, "time", SimpleNamespace(monotonic=lambda: clock_s))
    asyncio.run(scenario())
