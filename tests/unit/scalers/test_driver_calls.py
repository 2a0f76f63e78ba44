"""Driver of a scaler on a platform whose calls fail, take their time or are postponed."""

import asyncio
from collections.abc import Mapping

import pytest

from loadline.core.vocabulary.decisions import PoolTarget, VictimRule
from loadline.scalers.platform import PlatformError, PlatformWait, PoolKey, PoolObservation
from tests.support.decisions import decision
from tests.support.replicas import MemoryPlatform, ReplicaPool, refusing
from tests.support.virtual_time import run_virtual
from tests.unit.scalers.test_driver import KEY, Fleet
from tests.waiting import until


def test_the_reason_of_a_refusal_is_reported_and_calls_back_off() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        fleet.platform.fault = refusing(
            "deployments/llama is forbidden. Grant patch on deployments/scale.", "set_replicas"
        )
        async with fleet.running():
            fleet.decide(1, 3)
            await asyncio.sleep(100)
            calls = len(fleet.platform.requested())
            # 0.25, 0.5, 1, 2, 4, 8, 16 and then every 30 s.
            assert calls == 10
            assert list(dict.fromkeys(fleet.statuses())) == ["accepted", "progress"]
            assert fleet.details()[-1].startswith("p: deployments/llama is forbidden")
            fleet.platform.fault = lambda _call: None
            fleet.decide(2, 2)
            await fleet.until_done()
        assert fleet.platform.requested()[calls:] == [2]

    run_virtual(scenario())


def test_a_call_without_an_answer_ends_after_a_time_limit() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        observe = fleet.platform.observe
        fleet.platform.observe = lambda _pool: asyncio.sleep(10_000)  # type: ignore[method-assign,assignment,return-value]
        async with fleet.running():
            fleet.decide(1, 2)
            await until(lambda: "p: the platform did not answer within 30 s" in fleet.details())
            fleet.platform.observe = observe  # type: ignore[method-assign]
            await fleet.until_done()

    run_virtual(scenario())


def test_the_calls_of_a_step_may_take_their_time_limits_together() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 3)
        fleet.platform.call_s = 20
        async with fleet.running():
            fleet.decide(1, 2, "w0")
            await fleet.until_done()
        assert fleet.pool.workers == ["w1", "w2"]
        assert not any("did not answer" in detail for detail in fleet.details())

    run_virtual(scenario())


def test_a_count_that_could_not_be_set_is_no_count_that_somebody_else_sets() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        failures = iter(["the connection was reset"])

        def fault(call: str) -> None:
            problem = next(failures, "") if call == "set_replicas" else ""
            if problem:
                raise PlatformError(problem)

        fleet.platform.fault = fault
        async with fleet.running():
            fleet.decide(1, 3)
            await fleet.until_done()
        assert fleet.platform.requested() == [3, 3]
        assert "p: the connection was reset" in fleet.details()
        assert not any("another autoscaler" in detail for detail in fleet.details())

    run_virtual(scenario())


def test_a_count_that_the_platform_postpones_is_set_when_the_pool_has_changed() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 2)
        postponed = True

        def fault(call: str) -> None:
            if call == "set_replicas" and postponed:
                raise PlatformWait("pod w1 is not ready")

        fleet.platform.fault = fault
        async with fleet.running():
            fleet.decide(1, 3)
            await until(lambda: fleet.details()[-1:] == ["p: pod w1 is not ready"])
            assert fleet.answers()[-1].observed == {"p": 2}
            for _ in range(20):
                fleet.platform.change()
                await asyncio.sleep(1)
            assert len(fleet.platform.requested()) == 21
            postponed = False
            fleet.platform.change()
            await asyncio.sleep(0.5)
            assert fleet.pool.replicas == 3
            await fleet.until_done()
        assert fleet.details()[-1] == ""

    run_virtual(scenario())


def test_replicas_that_somebody_else_sets_are_requested_again_with_a_backoff() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        fleet.platform.fault = lambda call: setattr(fleet.pool, "replicas", 1) if call == "set_replicas:done" else None
        async with fleet.running():
            fleet.decide(1, 2)
            await asyncio.sleep(60)
            assert len(fleet.platform.requested()) < 12
            assert "it has 1 replicas although 2 were requested" in fleet.details()[-1]

    run_virtual(scenario())


class WatchedPlatform(MemoryPlatform):
    """Platform that knows its counts."""

    async def change_known(self, pool: PoolKey, replicas: int, *, lower: bool) -> int | None:
        await self._begin("change_known", (replicas, lower))
        known = self.pools[pool].replicas
        if replicas == known or (replicas < known and not lower):
            return None
        self.pools[pool].replicas = replicas
        return known


@pytest.mark.parametrize(("rule", "lower"), [("unknown", True), ("named", False)])
def test_a_known_count_is_changed_before_the_pool_is_observed(rule: VictimRule, *, lower: bool) -> None:
    async def scenario() -> None:
        fleet = Fleet(rule, 2)
        fleet.platform = WatchedPlatform({KEY: fleet.pool})
        async with fleet.running():
            fleet.decide(1, 4)
            await fleet.until_done()
            _, *calls = fleet.platform.calls  # the first reads the existing replicas
            assert calls[:2] == [("change_known", (4, lower)), ("observe", None)]
            assert fleet.platform.requested() == []
            # Once for each decision: from then on the pool is observed.
            fleet.platform.change()
            await asyncio.sleep(60)
            assert [call for call, _ in fleet.platform.calls].count("change_known") == 1

    run_virtual(scenario())


def test_a_decision_with_victims_changes_no_count_before_the_pool_is_observed() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 3)
        fleet.platform = WatchedPlatform({KEY: fleet.pool})
        async with fleet.running():
            fleet.decide(1, 2, "w0")
            await fleet.until_done()
        assert "change_known" not in {call for call, _ in fleet.platform.calls}

    run_virtual(scenario())


def test_a_known_count_that_is_refused_is_reported_and_backs_off() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        fleet.platform = WatchedPlatform({KEY: fleet.pool})
        fleet.platform.fault = refusing("forbidden", "change_known", "set_replicas")
        async with fleet.running():
            fleet.decide(1, 3)
            await asyncio.sleep(10)
            assert fleet.details()[-1] == "p: forbidden"
            assert [call for call, _ in fleet.platform.calls].count("change_known") == 1
            fleet.platform.fault = lambda _call: None
            await fleet.until_done()

    run_virtual(scenario())


def test_only_the_pools_that_have_changed_are_observed_again() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        other = PoolKey("m", "q")
        fleet.platform = NamingPlatform({KEY: fleet.pool, other: ReplicaPool("named", 1)})
        targets = [PoolTarget(key.pool, "decode", 2, 1) for key in (KEY, other)]
        fleet.current = decision(1, 1, *targets)
        async with fleet.running():
            fleet.announce()
            await fleet.until_done()
            await asyncio.sleep(1)
            fleet.platform.observed.clear()
            for _ in range(5):
                fleet.platform.change()
                await asyncio.sleep(0.5)
            assert fleet.platform.observed == [KEY] * 5

    run_virtual(scenario())


class NamingPlatform(MemoryPlatform):
    """Platform of whose changes all are of one pool."""

    def __init__(self, pools: Mapping[PoolKey, ReplicaPool]) -> None:
        super().__init__(pools)
        self.observed: list[PoolKey] = []

    async def observe(self, pool: PoolKey) -> PoolObservation:
        self.observed.append(pool)
        return await super().observe(pool)

    async def changed(self) -> set[PoolKey]:  # type: ignore[override]
        await super().changed()
        return {KEY}
