"""Observing scaler as a process, with a real agent and workers that others start."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from loadline.rig.rig import Rig
from tests.support.agents import AgentFleet, config, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "loadline", "scaler", "observed"]


def state(agent_fleet: AgentFleet) -> str:
    """Return the state of the newest decision in the leader's status."""
    status = agent_fleet.observer.leader()
    decision = status.models[0].decision if status else None
    return decision.state if decision else ""


def test_a_scale_up_is_accepted_at_once_and_applied_when_the_workers_are_ready(rig: Rig) -> None:
    agent = rig.agent(config(rig, "a"), "a")
    agent.wait_ready()
    scaler = subprocess.Popen([*COMMAND, "--config", str(rig.directory / "a.toml")])

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
            await agent_fleet.add("decode", "d1", "d2")
            await agent_fleet.add("prefill", "p1")
            agent_fleet.load(kv=0.97, waiting=0)
            await until(
                lambda: agent_fleet.observer.desired().get("decode", 0) == 3 and state(agent_fleet) == "accepted"
            )
            agent_fleet.load(kv=0.7)
            await agent_fleet.add("decode", "d3")
            await until(lambda: state(agent_fleet) == "applied")

    try:
        asyncio.run(scenario())
        scaler.terminate()
        assert scaler.wait(60) == 0
    finally:
        scaler.kill()


def test_invalid_arguments_are_explained(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    done = subprocess.run([*COMMAND, "--config", str(missing)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert str(missing) in done.stderr
