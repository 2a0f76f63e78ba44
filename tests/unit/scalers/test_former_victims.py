"""Victims that a newer decision does not name, though their workers still exist."""

import asyncio
import time

import pytest

from tests.support.virtual_time import run_virtual
from tests.unit.scalers.test_driver import Fleet


@pytest.mark.parametrize("later", [4, 3])
def test_a_victim_whose_drain_ended_goes_though_newer_decisions_name_it_no_more(
    later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each decision has a deadline of 60 s of its own, but w1 has hung since the first one."""

    async def scenario() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        fleet = Fleet("named", 5)
        fleet.drain_s = 600.0
        async with fleet.running():
            fleet.decide(1, 4, "w1", drain_ttl_ms=60_000)
            await asyncio.sleep(50.0)
            fleet.decide(2, later, *(("w0",) if later == 3 else ()), drain_ttl_ms=60_000)
            await asyncio.sleep(5.0)
            assert not fleet.pool.removed
            await asyncio.sleep(10.0)
            assert fleet.pool.removed == ["w1"]
            await fleet.until_done()
        assert set(fleet.pool.removed) == ({"w1", "w0"} if later == 3 else {"w1"})

    run_virtual(scenario())


def test_a_victim_of_a_cancelled_drain_is_not_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second decision needs w1 again, and another worker has started since."""

    async def scenario() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        fleet = Fleet("named", 5)
        fleet.drain_s = 600.0
        async with fleet.running():
            fleet.decide(1, 4, "w1", drain_ttl_ms=20_000)
            await asyncio.sleep(5.0)
            fleet.decide(2, 5)
            await fleet.until_done()
            fleet.pool.replicas = 6
            await asyncio.sleep(30.0)
            fleet.decide(3, 5)
            await asyncio.sleep(30.0)
        assert "w1" not in fleet.pool.removed

    run_virtual(scenario())
