"""Observing scaler: which decisions it accepts, and when it reports them as applied."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from msgspec.structs import replace

from loadline.client.resources import running
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.scalers.desired_counts import DesiredCounts
from loadline.scalers.observed import Followed, ObservedScaler
from loadline.wire.codec import encode
from tests.support.decisions import decision
from tests.unit.adapters.test_metrics import status_with
from tests.unit.client.test_scaler_client import SUBJECTS, Agent


class Leader(Agent):
    """Agents, of which one leads, and the pool status that they publish."""

    async def ready(self, counts: dict[str, int], *, leading: bool = True, model: str = "m") -> None:
        status = status_with({}, {})
        [known] = status.models
        pools = tuple(replace(known.pools[0], pool=name, ready=count) for name, count in counts.items())
        part = replace(status, leading=leading, models=(replace(known, model=model, pools=pools),))
        await self.bus.publish(SUBJECTS.status("a"), encode(part))
        await self.settle()

    async def settle(self) -> None:
        """Run the event loop until the scaler has processed everything."""
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def observing(followed: Followed | None = None) -> AsyncIterator[Leader]:
    leader = Leader()
    async with (
        asyncio.timeout(60),
        ScalerClient("s", ["m"], bus=leader.bus) as scaler,
        running(ObservedScaler(scaler, leader.bus, followed=followed).run(), "observed"),
    ):
        await leader.settle()
        yield leader


def run_scenario(scenario: Callable[[Leader], Awaitable[None]]) -> None:
    async def run() -> None:
        async with observing() as leader:
            await scenario(leader)

    asyncio.run(run())


def targets(prefill: int, decode: int) -> tuple[PoolTarget, PoolTarget]:
    return PoolTarget("prefill", "prefill", prefill, 1), PoolTarget("decode", "decode", decode, 2)


def test_a_decision_is_accepted_and_applied_when_all_pools_have_their_counts() -> None:
    async def scenario(leader: Leader) -> None:
        await leader.announce(decision(1, 1, *targets(1, 3)))
        await leader.answered((1, 1, "accepted"))
        await leader.ready({"prefill": 1, "decode": 2})
        await leader.ready({"prefill": 2, "decode": 3})
        await leader.ready({"prefill": 1, "decode": 3}, leading=False)
        await leader.bus.publish(SUBJECTS.status("a"), b"garbage")
        await leader.answered((1, 1, "accepted"))
        await leader.ready({"prefill": 1, "decode": 3})
        await leader.answered((1, 1, "accepted"), (1, 1, "done"))

    run_scenario(scenario)


def test_a_part_of_a_status_does_not_affect_models_of_other_parts() -> None:
    async def scenario(leader: Leader) -> None:
        await leader.ready({"prefill": 1, "decode": 3})
        await leader.ready({"prefill": 9, "decode": 9}, model="another")
        await leader.announce(decision(1, 1, *targets(1, 3)))
        await leader.answered((1, 1, "accepted"), (1, 1, "done"))

    run_scenario(scenario)


def test_only_the_newest_decision_of_a_model_is_answered() -> None:
    async def scenario(leader: Leader) -> None:
        await leader.announce(decision(1, 1, *targets(1, 3)))
        await leader.answered((1, 1, "accepted"))
        await leader.announce(decision(1, 2, *targets(1, 4)))
        await leader.answered((1, 1, "accepted"), (1, 2, "accepted"))
        await leader.ready({"prefill": 1, "decode": 3})
        await leader.ready({"prefill": 1, "decode": 4})
        await leader.answered((1, 1, "accepted"), (1, 2, "accepted"), (1, 2, "done"))

    run_scenario(scenario)


def test_the_reason_why_a_count_is_not_applied_is_reported_once() -> None:
    async def scenario() -> None:
        obstacles = {"prefill": "", "decode": "nobody asks"}
        followed = Followed(DesiredCounts(["m"], 60), lambda _model, pool: obstacles[pool])
        async with observing(followed) as leader:
            await leader.announce(decision(1, 1, *targets(1, 3)))
            for _ in range(2):
                await leader.ready({"prefill": 1, "decode": 2})
            obstacles["decode"] = ""
            await leader.ready({"prefill": 1, "decode": 2})
            await leader.ready({"prefill": 1, "decode": 3})
            answers = [(answer.status, answer.detail) for answer in leader.applied]
            assert answers == [("accepted", ""), ("progress", "decode: nobody asks"), ("progress", ""), ("done", "")]

    asyncio.run(scenario())


def test_a_decision_without_changes_is_applied_at_once() -> None:
    async def scenario(leader: Leader) -> None:
        await leader.ready({"prefill": 1, "decode": 3})
        await leader.announce(decision(1, 1, *targets(1, 3)))
        await leader.answered((1, 1, "accepted"), (1, 1, "done"))

    run_scenario(scenario)
