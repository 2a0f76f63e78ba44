"""Three agents that share the models out, with real servers: one is killed, one is stopped, one starts again."""

import asyncio
import signal
import time
from contextlib import AsyncExitStack

import pytest

from loadline.adapters.nats_bus import NatsBus
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.decisions.candidacy import rank_of
from loadline.core.state.partition import scope_of, shard_of_model
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.status import AgentStatus
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import DrainCommand
from loadline.wire.subjects import Subjects
from tests.support.agents import loadline
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

NAMES = ("a", "b", "c")
MODELS = [f"m{number}" for number in range(6)]
SHARDS = 8
LEASE_TTL_S = 10
"""Long enough that no lease lapses on a busy machine."""


def start(rig: Rig, name: str) -> ChildAgent:
    models = "".join(
        f'[[models]]\nname = "{model}"\nplanner = "static"\n'
        '[[models.pools]]\nname = "pool"\nrole = "aggregated"\nreplicas_min = 2\nreplicas_max = 9\n'
        for model in MODELS
    )
    sections: dict[str, dict[str, object]] = {
        "leadership": {"lease_ttl_s": LEASE_TTL_S, "margin_ms": 2_000},
        "sharing": {"shards": SHARDS},
        "runtime": {"status_interval_ms": 250},
    }
    return rig.agent(rig.config(models, name, **sections), name)


class Statuses:
    """Newest status of each agent that lives."""

    def __init__(self) -> None:
        self._newest: dict[str, AgentStatus] = {}
        self._gone: set[str] = set()

    def on_status(self, _subject: str, payload: bytes) -> None:
        status = decode_as(AgentStatus, payload)
        assert not isinstance(status, Rejected)
        if status.agent not in self._gone:
            self._newest[status.agent] = status

    def forget(self, agent: str) -> None:
        """Forget an agent that has ended; its last statuses may still arrive."""
        self._gone.add(agent)
        self._newest.pop(agent, None)

    def expect(self, agent: str) -> None:
        """Take the statuses of an agent that starts again."""
        self._gone.discard(agent)

    def leaders(self) -> dict[str, str]:
        """Return the leader of each model."""
        return {model: agent for model, (agent, _) in self.owners().items()}

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


def first_ranked(*live: str) -> dict[str, str]:
    """Return the agent that is to lead each model, of those that live."""
    scopes = {model: scope_of(shard_of_model(model, SHARDS)) for model in MODELS}
    return {model: min(live, key=lambda agent: rank_of(agent, live, scopes[model])) for model in MODELS}


def taken_over(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]], gone: str) -> bool:
    """Return True if other agents lead the models of an agent that is gone, with higher epochs.

    That no other model changes hands is tested in virtual time: on a busy machine any lease may lapse.
    """
    moved = {model: epoch for model, (agent, epoch) in before.items() if agent == gone}
    return (
        after.keys() == before.keys()
        and all(agent != gone for agent, _ in after.values())
        and all(after[model][1] > epoch for model, epoch in moved.items())
    )


def test_models_move_from_agents_that_leave_and_to_those_that_join(rig: Rig) -> None:
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
            assert set(first_ranked(*NAMES).values()) == set(NAMES)
            await until(lambda: statuses.leaders() == first_ranked(*NAMES))
            await until(lambda: statuses.fresh() == dict.fromkeys(MODELS, 1))
            await until(lambda: statuses.count() == len(MODELS))
            before = statuses.owners()
            await asyncio.to_thread(check_commands, rig)

            victim = before["m0"][0]
            began = time.monotonic()
            agents[victim].kill()
            statuses.forget(victim)
            await until(lambda: taken_over(before, statuses.owners(), victim))
            print(f"took over after {time.monotonic() - began:.2f} s")  # noqa: T201 - shown by pytest -s
            await until(lambda: statuses.fresh() == dict.fromkeys(MODELS, 1))

            left = statuses.owners()
            leaver = left["m0"][0]
            began = time.monotonic()
            agents[leaver].process.send_signal(signal.SIGTERM)
            await until(lambda: agents[leaver].process.poll() == 0)
            statuses.forget(leaver)
            await until(lambda: taken_over(left, statuses.owners(), leaver))
            print(f"handed over after {time.monotonic() - began:.2f} s")  # noqa: T201 - shown by pytest -s
            statuses.expect(victim)
            agents[victim] = start(rig, victim)
            # Those that it led before come back from an agent that ranks lower, and others from the one that has left.
            live = [name for name in NAMES if name != leaver]
            await until(lambda: statuses.leaders() == first_ranked(*live))
            await until(lambda: statuses.count() == len(MODELS))

    asyncio.run(scenario())
    for agent in agents.values():
        agent.stop()


def check_commands(rig: Rig) -> None:
    """Check that commands reach all models, whichever agent leads them."""
    shown = loadline(rig, "status")
    assert shown.returncode == 0, shown.stderr
    assert [name for name in NAMES if f"agent {name} " in shown.stdout] == list(NAMES)
    assert "live agents: a, b, c" in shown.stdout
    explained = loadline(rig, "explain", "--json")
    assert explained.returncode == 0, explained.stderr
    assert [model for model in MODELS if f'"{model}"' in explained.stdout] == MODELS
    for model in MODELS[:2]:
        done = loadline(rig, "pause", model)
        assert done.returncode == 0, done.stderr
    merged = decode_as(AgentStatus, loadline(rig, "status", "--json").stdout.encode())
    assert not isinstance(merged, Rejected)
    assert {model.model: model.paused for model in merged.models} == {model: model in MODELS[:2] for model in MODELS}


async def never_drained(command: DrainCommand) -> None:
    raise AssertionError(command)
