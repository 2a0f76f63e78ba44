"""End of an agent: the effects that it waits for, and those that it does not."""

import asyncio

import pytest

from loadline.config import parse
from loadline.core.vocabulary.allocations import AllocationProblem
from loadline.core.vocabulary.effects import AnyEffect, FitForecast, ReadDecisions, SolveAllocation
from loadline.runtime.loop import SHUTDOWN_TIMEOUT_S
from tests.support.service import service_of
from tests.support.virtual_time import run_virtual

CONFIG = '[[models]]\nname = "m"\n[[models.pools]]\nname = "pool"\nrole = "aggregated"\n'


@pytest.mark.parametrize(
    ("effect", "awaited"),
    [
        (FitForecast("m", 1, []), False),
        (SolveAllocation(1, AllocationProblem((), {}), 1_000), False),
        (ReadDecisions(1), True),
    ],
)
def test_a_shutdown_waits_for_effects_except_for_forecasts_and_allocations(effect: AnyEffect, *, awaited: bool) -> None:
    async def scenario() -> None:
        runtime, _ = service_of(parse(CONFIG, "test"))
        running = asyncio.create_task(runtime.run())
        await asyncio.sleep(1)
        runtime._spawn(effect, asyncio.sleep(3_600))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        runtime.stop()
        await running
        assert (loop.time() - began_s >= SHUTDOWN_TIMEOUT_S) is awaited

    run_virtual(scenario())
