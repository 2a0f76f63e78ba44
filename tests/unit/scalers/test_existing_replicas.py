"""Replicas that a platform has before its scaler accepts a first decision."""

import asyncio

from tests.support.replicas import refusing
from tests.support.virtual_time import run_virtual
from tests.unit.scalers.test_driver import KEY, Fleet
from tests.waiting import until


def test_the_first_decision_must_know_the_replicas_that_exist() -> None:
    """The scaler and all agents were restarted after etcd had lost its data."""

    async def scenario() -> None:
        fleet = Fleet("named", 8)
        async with fleet.running():
            fleet.decided = 2  # those that have registered
            fleet.decide(1, 3)
            await until(lambda: "refused" in fleet.statuses())
            assert fleet.answers()[-1].in_force == {"p": 8}
            fleet.decided = 8
            fleet.decide(2, 9)
            await fleet.until_done()
        assert fleet.platform.requested() == [9]

    run_virtual(scenario())


def test_replicas_that_others_remove_before_the_first_decision_do_not_exist_any_more() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 8)
        async with fleet.running():
            await until(lambda: ("observe", None) in fleet.platform.calls)
            await fleet.platform.set_replicas(KEY, 2)
            await asyncio.sleep(60)
            fleet.decided = 2
            fleet.decide(1, 3)
            await fleet.until_done()
        assert "refused" not in fleet.statuses()

    run_virtual(scenario())


def test_a_platform_that_cannot_be_asked_at_the_start_delays_no_decision_for_long() -> None:
    async def scenario() -> None:
        fleet = Fleet("named", 1)
        fleet.platform.fault = refusing("away", "observe")
        async with fleet.running():
            fleet.decide(1, 2)
            await until(lambda: "accepted" in fleet.statuses())
            fleet.platform.fault = lambda _call: None
            await fleet.until_done()

    run_virtual(scenario())
