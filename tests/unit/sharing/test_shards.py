"""One agent that shares its models, in this process: its shards, its answers and its reloads."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from structlog.testing import capture_logs

from loadline import app
from loadline.adapters.system_clock import SystemClock
from loadline.config import Config, parse
from loadline.core.controller import Controller
from loadline.core.state.partition import partition, shard_of_model, split
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import SettingsChanged
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import ConfigError
from loadline.ports import Write
from loadline.runtime.feeds import Feeds, KeyRouter
from loadline.runtime.loop import Runtime
from loadline.runtime.service import Service
from loadline.runtime.shards import Shards, SharedFeeds
from loadline.runtime.slices import run_in_slices
from loadline.sim.world.fitter import InlineFitter
from loadline.wire.codec import encode
from loadline.wire.messages import (
    AnnounceRequest,
    DecisionsReply,
    DrainOrder,
    ExplainReply,
    ExplainRequest,
    PauseCommand,
)
from tests.support.memory import KEYS, FollowedStore, MemoryBus
from tests.waiting import until

MODELS = ("m", "n", "o", "p")
SHARDS = 8


def config(*models: str, more: str = "") -> Config:
    tables = (
        f'[[models]]\nname = "{model}"\nplanner = "static"\n'
        '[[models.pools]]\nname = "pool"\nrole = "aggregated"\naccelerator = "gpu"\n'
        for model in models
    )
    return parse(f'[agent]\nname = "a"\n[sharing]\nshards = {SHARDS}\n{more}\n{"".join(tables)}', "test")


class SharingAgent:
    """An agent on a bus and a store in memory."""

    def __init__(self, configured: Config) -> None:
        self.settings = app.settings(configured)
        self.bus, self.store = MemoryBus(), FollowedStore()
        router = KeyRouter(KEYS, self.settings)
        feeds = Feeds(self.bus, self.store, router, SHARDS)
        runtimes = [
            Runtime(
                controller=Controller(part),
                clock=SystemClock(),
                bus=self.bus,
                store=self.store,
                fitter=InlineFitter(),
                journal=None,
                root="loadline",
                namespace="default",
                knobs=configured.runtime,
                frame_bytes_max=configured.nats.frame_bytes_max,
                version="0",
                on_turn=lambda _seconds: None,
                on_rejected=lambda _rejected: None,
                follow=feeds.follow_of(shard),
                connect=feeds.connect,
            )
            for shard, part in enumerate(split(self.settings))
        ]
        self.shards = Shards(runtimes, SharedFeeds(feeds, router))
        self.service = Service(self.shards, self.bus, "0")

    def led(self) -> set[str]:
        """Return the models that the agent leads and whose decisions it has read."""
        states = [one.controller.state for one in self.shards.leading]
        return {model for state in states if state.decisions_read for model in state.fleet.models}

    def reload(self, configured: Config) -> None:
        """Check new settings and hand them over, as the reloader does."""
        loaded = app.settings(configured)
        self.shards.check(loaded)
        self.shards.put(SettingsChanged(Raw(msgspec.json.encode(loaded))))

    def problems(self) -> set[str]:
        """Return the reasons why the last settings are not active."""
        return {one.controller.state.config_problem for one in self.shards.runtimes} - {""}


def run(scenario: Callable[[SharingAgent], Awaitable[None]], configured: Config) -> None:
    async def play() -> None:
        async with asyncio.timeout(60):
            agent = SharingAgent(configured)
            running = asyncio.create_task(agent.shards.run())
            await until(lambda: agent.led() == {model.name for model in configured.models})
            await scenario(agent)
            agent.shards.stop()
            await running
            assert not [
                key
                for key in agent.store.server.keys
                if key.startswith((KEYS.agents, KEYS.leader("shard-"))) and not key.endswith("/epoch")
            ]

    asyncio.run(play())


def test_an_agent_alone_leads_all_models_and_leaves_no_lease_behind() -> None:
    async def scenario(agent: SharingAgent) -> None:
        status, _ = await run_in_slices(agent.service.status())
        assert status.sharing is not None
        assert (status.leading, status.sharing.agents, status.sharing.led_ratio) == (True, ("a",), 1.0)
        assert [model.model for model in status.models] == list(MODELS)
        assert all(model.epoch > 0 for model in status.models)
        assert status.bus_connected
        assert agent.store.server.keys[KEYS.agent("a")].value == b"a"

    run(scenario, config(*MODELS))


def test_lines_of_the_log_name_the_shard_that_is_led() -> None:
    async def scenario(agent: SharingAgent) -> None:
        led = {one.controller.settings.scope for one in agent.shards.leading}
        assert {line["scope"] for line in lines if line["event"] == "leading"} == led

    with capture_logs() as lines:
        run(scenario, config(*MODELS))
    given_back = [line for line in lines if line["event"] == "leadership_given_back"]
    assert {line["scope"] for line in given_back} == {line["scope"] for line in lines if line["event"] == "leading"}


def test_requests_reach_the_shard_of_their_model() -> None:
    async def scenario(agent: SharingAgent) -> None:
        reply = await agent.service.set_paused("n", "me", paused=True)
        assert reply.accepted
        assert agent.store.server.keys[KEYS.pause("n")].value == b"me"
        unknown = await agent.service.set_paused("x", "me", paused=True)
        assert not unknown.accepted
        assert "m, n, o, p" in unknown.detail
        answer = await agent.service._explain(encode(ExplainRequest()))
        assert answer is not None
        explained = msgspec.json.decode(answer, type=ExplainReply)
        assert explained.shared
        assert {one.model for one in explained.explanations} == set(MODELS)
        answer = await agent.service._decisions(b"")
        assert answer is not None
        assert msgspec.json.decode(answer, type=DecisionsReply).shared

    run(scenario, config(*MODELS))


def test_requests_about_a_model_that_another_agent_leads_are_left_to_it() -> None:
    async def scenario(agent: SharingAgent) -> None:
        runtime = agent.shards.of_model("n")
        assert runtime is not None
        elsewhere = set(runtime.controller.state.fleet.models)
        runtime.controller.state.leadership.phase = "follower"
        assert await agent.service._pause(encode(PauseCommand("n", "me")), paused=True) is None
        assert await agent.service._explain(encode(ExplainRequest(model="n"))) is None
        assert await agent.service._announce(encode(AnnounceRequest(("n",), "me"))) is None
        status, _ = await run_in_slices(agent.service.status())
        assert {model.model for model in status.models} == set(MODELS) - elsewhere
        runtime.controller.state.leadership.phase = "leading"  # so that it gives its lease back

    run(scenario, config(*MODELS))


def test_requests_about_a_model_that_only_another_agent_knows_are_left_to_it() -> None:
    async def scenario(agent: SharingAgent) -> None:
        pause, drain = encode(PauseCommand("x", "me")), encode(DrainOrder("x", "pool", "w", "me"))
        leadership = agent.shards.runtimes[shard_of_model("x", SHARDS)].controller.state.leadership
        phase = leadership.phase
        leadership.phase, leadership.leader = "follower", "b"
        assert await agent.service._pause(pause, paused=True) is None
        assert await agent.service._drain(drain) is None
        assert await agent.service._explain(encode(ExplainRequest(model="x"))) is None
        assert await agent.service._explain(encode(ExplainRequest())) is not None
        leadership.leader = ""
        refused = await agent.service._pause(pause, paused=True)
        assert refused is not None, "nobody leads its shard, so that no agent knows it"
        assert b"there is no model" in refused
        leadership.phase = phase  # so that it gives its lease back

    run(scenario, config(*MODELS))


def test_a_model_that_a_reload_adds_finds_its_registered_workers() -> None:
    async def scenario(agent: SharingAgent) -> None:
        record = WorkerRecord("q", "pool", "w", "aggregated", 1)
        await agent.store.commit([], [Write(KEYS.worker("q", "pool", "w"), encode(record))])
        agent.reload(config(*MODELS, "q"))

        def counted() -> bool:
            runtime = agent.shards.of_model("q")
            return runtime is not None and "w" in runtime.controller.state.fleet.models["q"].pools["pool"].workers

        await until(counted)
        await until(lambda: "q" in agent.led())

    run(scenario, config(*MODELS))


def limited(*models: str) -> Config:
    return config(*models, more='[[accelerators]]\nname = "gpu"\n[allocation]\ncapacity = { gpu = 4 }')


def test_a_reload_that_moves_models_between_shards_is_refused() -> None:
    assert set(partition(app.settings(config(*MODELS))).values()) != set(
        partition(app.settings(limited(*MODELS))).values()
    )

    async def scenario(agent: SharingAgent) -> None:
        with pytest.raises(ConfigError, match="Restart all agents"):
            agent.reload(limited(*MODELS))
        assert agent.led() == set(MODELS)

    run(scenario, config(*MODELS))


def test_a_model_with_limited_gpus_that_a_reload_adds_joins_their_shard() -> None:
    def shards_of(settings: Settings) -> set[int]:
        return set(partition(settings).values())

    async def scenario(agent: SharingAgent) -> None:
        agent.reload(limited(*MODELS))
        await until(lambda: agent.led() == set(MODELS))
        assert not agent.problems()
        assert len(shards_of(replace(agent.settings, models=app.settings(limited(*MODELS)).models))) == 1
        # All models are led again, under the layout that has them.
        layouts = {one.controller.state.leadership.layout for one in agent.shards.runtimes}
        assert {agent.store.server.keys[KEYS.layout].value.decode()} == layouts

    run(scenario, limited(*MODELS[:2]))
