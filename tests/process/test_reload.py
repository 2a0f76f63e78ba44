"""Reload of a configuration: by SIGHUP, by a replaced file, and of a broken one."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import pytest

from loadline.core.vocabulary.status import AgentStatus
from loadline.rig.rig import ChildAgent, Rig
from tests.support.agents import LEASE_TTL_S, MODELS, AgentFleet, assert_replays, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

OTHER = """
[[models]]
name = "other"
[[models.pools]]
name = "main"
role = "aggregated"
"""


def text(rig: Rig, models: str, name: str = "a", interval_ms: int = 50) -> str:
    leadership: dict[str, object] = {"lease_ttl_s": LEASE_TTL_S, "margin_ms": 1_000}
    own: dict[str, object] = {"name": name, "log_format": "json", "reload_interval_ms": interval_ms}
    return rig.config(models, name, leadership=leadership, fleet={"stale_after_ms": 1_500}, agent=own)


def write(rig: Rig, name: str, content: str) -> None:
    new_file = rig.directory / f"{name}.new"
    new_file.write_text(content, encoding="utf-8")
    new_file.replace(rig.directory / f"{name}.toml")


def run_scenario(rig: Rig, scenario: Callable[[AgentFleet], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
            await scenario(agent_fleet)

    asyncio.run(run())


def start(rig: Rig, content: str, name: str = "a") -> ChildAgent:
    agent = rig.agent(content, name)
    agent.wait_ready()
    return agent


def status(agent_fleet: AgentFleet, name: str = "a") -> AgentStatus:
    return agent_fleet.observer.statuses[name]


def test_decisions_continue_with_a_changed_configuration(rig: Rig) -> None:
    agent = start(rig, text(rig, MODELS))

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        agent_fleet.load(kv=0.97)
        await until(lambda: agent_fleet.observer.desired().get("decode", 0) >= 3)
        digest, epoch = status(agent_fleet).config_digest, status(agent_fleet).epoch
        write(rig, "a", text(rig, MODELS.replace("replicas_max = 9", "replicas_max = 2") + OTHER))
        await until(lambda: status(agent_fleet).config_digest != digest)
        await until(lambda: agent_fleet.observer.desired().get("decode", 0) == 2)
        await until(lambda: agent_fleet.observer.desired()["main"] == 1, "a new model is planned")
        assert agent_fleet.ready() == {"d1", "d2", "p1"}
        assert status(agent_fleet).epoch == epoch
        write(rig, "a", text(rig, MODELS))
        await until(lambda: status(agent_fleet).config_digest == digest)
        assert set(agent_fleet.observer.desired()) == {"decode", "prefill"}

    run_scenario(rig, scenario)
    assert "models.m.pools.decode.replicas_max: 9 -> 2" in agent.log.read_text()
    assert agent.stop() == 0
    assert_replays(rig, "a")


def test_a_broken_file_is_not_applied_until_it_is_fixed(rig: Rig) -> None:
    agent = start(rig, text(rig, MODELS))

    async def scenario(agent_fleet: AgentFleet) -> None:
        await until(lambda: "a" in agent_fleet.observer.statuses)
        digest = status(agent_fleet).config_digest
        write(rig, "a", text(rig, MODELS.replace("replicas_max = 9", "replicas_max = 0")))
        await until(lambda: "models[0].pools[0].replicas_max" in status(agent_fleet).config_problem)
        assert status(agent_fleet).config_digest == digest
        assert "loadline_config_ok 0.0" in agent.get("/metrics")[1]
        assert 'loadline_alarms_total{kind="settings_refused"} 1.0' in agent.get("/metrics")[1]
        write(rig, "a", text(rig, MODELS.replace("replicas_max = 9", "replicas_max = 8")))
        await until(lambda: status(agent_fleet).config_digest != digest)
        assert not status(agent_fleet).config_problem
        assert "loadline_config_ok 1.0" in agent.get("/metrics")[1]

    run_scenario(rig, scenario)
    assert agent.stop() == 0


def test_sighup_reloads_a_file_that_is_not_watched(rig: Rig) -> None:
    agent = start(rig, text(rig, MODELS, interval_ms=0))

    async def scenario(agent_fleet: AgentFleet) -> None:
        await until(lambda: "a" in agent_fleet.observer.statuses)
        digest = status(agent_fleet).config_digest
        changed = text(rig, MODELS + OTHER, interval_ms=0).replace("lease_ttl_s = 3", "lease_ttl_s = 9")
        write(rig, "a", changed)
        agent.process.send_signal(signal.SIGHUP)
        await until(lambda: status(agent_fleet).config_digest != digest)
        assert "leadership.lease_ttl_s" in status(agent_fleet).restart_for

    run_scenario(rig, scenario)
    assert "not_reloaded" in agent.log.read_text()
    assert agent.stop() == 0


def test_a_standby_with_another_configuration_is_reported(rig: Rig) -> None:
    start(rig, text(rig, MODELS, "a"), "a")
    start(rig, text(rig, MODELS, "b"), "b")

    async def scenario(agent_fleet: AgentFleet) -> None:
        await until(lambda: {"a", "b"} <= agent_fleet.observer.statuses.keys())
        assert status(agent_fleet, "a").config_digest == status(agent_fleet, "b").config_digest
        write(rig, "b", text(rig, MODELS + OTHER, "b"))
        await until(lambda: status(agent_fleet, "a").config_digest != status(agent_fleet, "b").config_digest)
        write(rig, "a", text(rig, MODELS + OTHER, "a"))
        await until(lambda: status(agent_fleet, "a").config_digest == status(agent_fleet, "b").config_digest)

    run_scenario(rig, scenario)
