"""Three agents that share the models out, with real servers: one is killed, one is stopped, one starts again."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from loadline.adapters.nats_bus import NatsBus
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.status import AgentStatus
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import DrainCommand
from loadline.wire.subjects import Subjects
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

NAMES = ("a", "b", "c")
MODELS = [f"m{number}" for number in range(6)]
SHARDS = 8
LEASE_TTL_S = 10
"""Long enough that no lease lapses on a busy machine."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as agent_fleet:
        yield agent_fleet


def start(rig: Rig, name: str) -> ChildAgent:
    models = "".join(
        f'[[models]]\nname = "{model}"\nplanner = "static"\n'
        '[[models.pools]]\nname = "pool"\nrole = "aggregated"\nreplicas_min = 2\nreplicas_max = 9\n'
        for model in MODELS
    )
    sections: dict[str, dict[str, object]] = {
        "leadership": {"lease_ttl_s": LEASE_TTL_S, "margin_ms": 2_000},
        "sharing": {"shards": SHARDS},
        "runtime": {"status_interval_ms": 100},
    }
    return rig.agent(rig.config(models, name, **sections), name)


class Statuses:
    """Newest status of each agent that lives."""

    def __init__(self) -> None:
        self._newest: dict[str, AgentStatus] = {}

    def on_status(self, _subject: str, payload: bytes) -> None:
        status = decode_as(AgentStatus, payload)
        assert not isinstance(status, Rejected)
        self._newest[status.agent] = status

    def forget(self, agent: str) -> None:
        """Forget an agent that has ended."""
        self._newest.pop(agent, None)

    def owners(self) -> dict[str, tuple[str, int]]:
        """Return agent and epoch of the leader of each model."""
        return {one.model: (name, one.epoch) for name, status in self._newest.items() for one in status.models}

    def count(self) -> int:
        """Return the number of pairs of an agent and a model that it leads."""
        return sum(len(status.models) for status in self._newest.values())

    def fresh(self) -> dict[str, int]:
        """Return the number of workers that report, by model."""
        return {
            model.model: sum(pool.fresh for pool in model.pools)
            for status in self._newest.values()
            for model in status.models
        }

    def live(self) -> set[tuple[str, ...]]:
        """Return the live agents as each agent sees them."""
        return {status.sharing.agents for status in self._newest.values() if status.sharing is not None}


def kept(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]], gone: str) -> bool:
    """Return True if the models of an agent have other leaders, with higher epochs, and the others are as before."""
    return after.keys() == before.keys() and all(
        (after[model][0] != gone and after[model][1] > epoch) if agent == gone else after[model] == (agent, epoch)
        for model, (agent, epoch) in before.items()
    )


def test_models_move_only_from_agents_that_leave_and_to_those_that_join(rig: Rig) -> None:
    agents = {name: start(rig, name) for name in NAMES}
    for agent in agents.values():
        agent.wait_ready()
    statuses = Statuses()

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), AsyncExitStack() as stack:
            bus = NatsBus(NatsKnobs(servers=(rig.nats.url,)), name="test")
            await bus.connect(lambda _connected: None)
            stack.push_async_callback(bus.close)
            await bus.subscribe(Subjects("loadline").all_of("status"), statuses.on_status)
            for model in MODELS:
                client = WorkerClient(
                    WorkerRecord(model, "pool", f"w-{model}", "aggregated", 1),
                    nats=NatsKnobs(servers=(rig.nats.url,)),
                    etcd=EtcdKnobs(endpoints=(rig.etcd.url,)),
                    sample=lambda: WorkerSample(0, 0, kv_usage_ratio=0.5, waiting_requests=0, running_requests=1),
                    on_drain=never_drained,
                    report_interval_ms=100,
                )
                await stack.enter_async_context(client)
                await client.ready()
            await until(lambda: statuses.live() == {NAMES} and set(statuses.owners()) == set(MODELS))
            # Agents that started first hand over to those that rank higher.
            await until(lambda: {agent for agent, _ in statuses.owners().values()} == set(NAMES))
            await until(lambda: statuses.fresh() == dict.fromkeys(MODELS, 1))
            await settled(statuses)
            before = statuses.owners()
            assert statuses.count() == len(MODELS)

            victim = before["m0"][0]
            began = time.monotonic()
            agents[victim].kill()
            statuses.forget(victim)
            await until(lambda: kept(before, statuses.owners(), victim))
            print(f"took over after {time.monotonic() - began:.2f} s")  # noqa: T201 - shown by pytest -s
            await until(lambda: statuses.fresh() == dict.fromkeys(MODELS, 1))

            left = statuses.owners()
            leaver = left["m0"][0]
            began = time.monotonic()
            agents[leaver].process.send_signal(signal.SIGTERM)
            await until(lambda: agents[leaver].process.poll() == 0)
            statuses.forget(leaver)
            await until(lambda: kept(left, statuses.owners(), leaver))
            print(f"handed over after {time.monotonic() - began:.2f} s")  # noqa: T201 - shown by pytest -s
            assert len({agent for agent, _ in statuses.owners().values()}) == 1

            alone = statuses.owners()
            agents[victim] = start(rig, victim)
            moved = [model for model, (agent, _) in before.items() if agent == victim]
            await until(lambda: all(statuses.owners().get(model, ("",))[0] == victim for model in moved))
            await settled(statuses)
            now = statuses.owners()
            assert all(now[model] == alone[model] for model in MODELS if now[model][0] != victim)

    asyncio.run(scenario())
    for agent in agents.values():
        agent.stop()


async def never_drained(command: DrainCommand) -> None:
    raise AssertionError(command)


async def settled(statuses: Statuses) -> None:
    """Wait until no model changes hands for a second, and each has one leader."""
    seen: list[dict[str, tuple[str, int]]] = []

    def unchanged() -> bool:
        seen.append(statuses.owners())
        del seen[:-100]
        return len(seen) == 100 and all(one == seen[0] for one in seen) and statuses.count() == len(MODELS)

    await until(unchanged)
