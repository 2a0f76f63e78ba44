"""Load on the demo fleet that a test begins and ends, so that it lasts as long as the test needs on any machine."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from loadline.demo.account import DemoSummary
from loadline.demo.gateway import parse_options, run
from loadline.traces import Arrival
from tests.support.demo_fleet import MODEL, TIMEOUT_S, DemoFleet

PROMPT_TOKENS = (300, 1_500)  # more than the last stage of a live copy, so that every copy takes time
OUTPUT_TOKENS = (50, 800)  # at 20 ms each, up to 16 s of virtual time
ENDLESS_TOKENS = 20_000  # 400 s of virtual time: no test lasts that long


class Load:
    """The gateway of a demo fleet in this process.

    Args:
        fleet: The fleet that it serves with.
        speed: Virtual seconds per second, equal to that of the workers.
        per_s: Arrivals per virtual second.
        endless: Number of requests that arrive at once and do not end; 0: requests arrive until ``finish``.
    """

    def __init__(self, fleet: DemoFleet, speed: float, *, per_s: float = 2.0, unending: int = 0) -> None:
        place = ["--model", MODEL, "--nats", fleet.nats, "--etcd", fleet.etcd]
        place += ["--root", fleet.root, "--namespace", fleet.root, "--speed", str(speed)]
        self._stop = asyncio.Event()
        self._over = False
        arrivals = itertools.repeat(Arrival(0.0, PROMPT_TOKENS[0], ENDLESS_TOKENS), unending)
        self._run = asyncio.create_task(
            run(parse_options(place), arrivals if unending else self._arrivals(per_s), self._stop)
        )

    async def finish(self) -> DemoSummary:
        """End the arrivals, and return the summary once all requests have ended."""
        self._over = True
        async with asyncio.timeout(TIMEOUT_S):
            return await self._run

    async def stop(self) -> DemoSummary:
        """Stop at once, and return the summary."""
        self._stop.set()
        return await self._run

    def _arrivals(self, per_s: float) -> Iterator[Arrival]:
        rng = random.Random(0)
        for number in itertools.count():
            if self._over:
                return
            yield Arrival(number / per_s, rng.randint(*PROMPT_TOKENS), rng.randint(*OUTPUT_TOKENS))


@asynccontextmanager
async def load_on(fleet: DemoFleet, speed: float, *, per_s: float = 2.0, unending: int = 0) -> AsyncIterator[Load]:
    """Run a load once all workers are ready, and stop it at the end; see ``Load``."""
    await fleet.all_ready()
    load = Load(fleet, speed, per_s=per_s, unending=unending)
    try:
        yield load
    finally:
        await load.stop()
