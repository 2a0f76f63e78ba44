"""Worker of the local scaler that takes the other role, with a real agent, nats-server and etcd."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadline.rig.rig import Rig
from loadline.scalers.local.lifetimes import Lifetime
from tests.process.test_role_change import members
from tests.support.agents import assert_replays, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

STARTED = {"prefill": ["prefill-1", "prefill-2"], "decode": ["decode-1", "decode-2"]}
MOVED = {"prefill": ["prefill-1"], "decode": ["decode-1", "decode-2", "prefill-2"]}


def agent_config(rig: Rig, **counts: int) -> str:
    """Return a configuration with fixed counts; a pool without one keeps what it has."""
    pools = [f'[[models.pools]]\nname = "{name}"\nrole = "{name}"' for name in STARTED]
    fixed = ["[models.static.replicas]", *(f"{name} = {count}" for name, count in counts.items())]
    guardrails = ["[models.guardrails]", "stabilisation_ms = 500", "warm_up_ms = 500", "cooldown_down_ms = 500"]
    text = "\n".join(["[[models]]", 'name = "m"', 'planner = "static"', *fixed, *guardrails, *pools])
    own: dict[str, object] = {"name": "a", "reload_interval_ms": 50}
    leadership: dict[str, object] = {"lease_ttl_s": 3, "margin_ms": 1_000}
    return rig.config(text, "a", agent=own, leadership=leadership, fleet={"stale_after_ms": 1_500})


def scaler_config(rig: Rig) -> Path:
    """Write the configuration of a local scaler whose workers move once a file of their name exists."""
    where = [rig.nats.url, rig.etcd.url, str(rig.directory)]
    command = [sys.executable, "-m", "tests.support.role_worker", *where, "{pool}", "{worker}"]
    pools = [
        line
        for name in STARTED
        for line in (
            "[[models.pools]]",
            f'name = "{name}"',
            f'role = "{name}"',
            f"command = {msgspec.json.encode(command).decode()}",
        )
    ]
    path = rig.directory / "local.toml"
    head = [
        f'nats.servers = ["{rig.nats.url}"]',
        f'lifetimes_file = "{rig.directory}/lifetimes.jsonl"',
        "linger_ms = 200",
    ]
    path.write_text("\n".join([*head, "[[models]]", 'name = "m"', *pools]), encoding="utf-8")
    return path


def reload(rig: Rig, content: str) -> None:
    new_file = rig.directory / "a.new"
    new_file.write_text(content, encoding="utf-8")
    new_file.replace(rig.directory / "a.toml")


def ended(rig: Rig) -> dict[str, str]:
    """Return the reasons of the ends of processes by worker."""
    path = rig.directory / "lifetimes.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return {one.worker: one.reason for one in (msgspec.json.decode(line, type=Lifetime) for line in lines)}


def test_a_move_starts_and_ends_no_process_and_a_scale_down_ends_the_right_one(rig: Rig) -> None:
    agent = rig.agent(agent_config(rig, prefill=2, decode=2), "a")
    agent.wait_ready()
    arguments = ["scaler", "local", "--config", str(scaler_config(rig))]
    scaler = subprocess.Popen([sys.executable, "-m", "loadline", *arguments])

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agents:

            def applied(sequence: int) -> bool:
                status = agents.observer.leader()
                decision = status.models[0].decision if status else None
                return decision is not None and decision.sequence > sequence and decision.state == "applied"

            def reloaded() -> bool:
                status = agents.observer.leader()
                return status is not None and status.counters.get("settings_changed", 0) == 1

            await until(lambda: members(agents) == STARTED, str(STARTED))
            await until(lambda: applied(0), "the first decision is done")
            reload(rig, agent_config(rig))
            await until(reloaded, "the counts are fixed no more")
            (rig.directory / "prefill-2").touch()
            await until(lambda: members(agents) == MOVED, str(MOVED))
            await until(lambda: "prefill-2" in agents.ready(), "it reports in its new pool")
            assert agents.observer.desired() == {"prefill": 1, "decode": 3}
            before = [decision.sequence for decision in agents.observer.committed][-1]
            reload(rig, agent_config(rig, decode=2))
            await until(lambda: applied(before), "the scale-down is done")
            last = {target.pool: target for target in agents.observer.committed[-1].targets}
            assert [victim.worker for victim in last["prefill"].victims] == ["prefill-2"]
            assert {name: target.replicas for name, target in last.items()} == {"prefill": 1, "decode": 2}
            assert [one.sequence for one in agents.observer.committed][-2:] == [before, before + 1]
            await until(lambda: members(agents) == {**STARTED, "prefill": ["prefill-1"]})
            await until(lambda: ended(rig) == {"prefill-2": "drained"}, "and no other process has ended")

    try:
        asyncio.run(scenario())
    finally:
        scaler.terminate()
        scaler.wait(10)
    agent.stop()
    assert set(ended(rig)) == {"prefill-1", "prefill-2", "decode-1", "decode-2"}, "no other process was started"
    assert_replays(rig, "a")
