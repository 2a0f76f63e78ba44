"""Exec scaler as a process, with a real agent, and the shell programs of its guide."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.core.vocabulary.decisions import PoolTarget, Victim
from loadline.rig.rig import Rig
from loadline.wire.codec import encode
from loadline.wire.messages import DecisionApplied
from loadline.wire.subjects import Subjects
from tests.support.agents import AgentFleet, config, fleet
from tests.support.decisions import decision
from tests.unit.repository.test_docs import DOCS, blocks
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

COMMAND = Path(__file__).parents[1] / "support" / "exec_command.py"
NATS_CLI = f"""#!{sys.executable}
# The part of the nats CLI that the guide uses: subscribe SUBJECT --raw, and publish SUBJECT BODY.
import asyncio, os, sys
import nats

async def main():
    client = await nats.connect(os.environ["NATS_URL"])
    if sys.argv[1] == "publish":
        await client.publish(sys.argv[2], sys.argv[3].encode())
        return await client.drain()
    assert sys.argv[1:] == ["subscribe", sys.argv[2], "--raw"]
    subscription = await client.subscribe(sys.argv[2])
    async for message in subscription.messages:
        print(message.data.decode(), flush=True)

asyncio.run(main())
"""
DOCKER = """#!/bin/sh
# docker compose ps --quiet POOL, and docker compose up ... --scale POOL=N POOL
for last; do :; done
case $2 in
ps) seq "$(cat "$STATE/$last" 2>/dev/null || echo 0)" ;;
up) echo "${6#*=}" >"$STATE/$last" ;;
esac
"""


def write_config(rig: Rig) -> Path:
    path = rig.directory / "exec.toml"
    command = [sys.executable, str(COMMAND), str(rig.directory)]
    pools = "".join(f'[[models.pools]]\nname = "{pool}"\nvictims = "named"\n' for pool in ("decode", "prefill"))
    path.write_text(
        f'command = {json.dumps(command)}\npoll_ms = 200\nnats.servers = ["{rig.nats.url}"]\n'
        f'[[models]]\nname = "m"\n{pools}',
        "utf-8",
    )
    return path


def workers(rig: Rig) -> list[str]:
    named: list[str] = json.loads((rig.directory / "decode.json").read_text("utf-8"))[0]
    return named


def newest(agent_fleet: AgentFleet) -> tuple[str, str]:
    """Return the state of the newest decision in the leader's status, and why it waits."""
    status = agent_fleet.observer.leader()
    found = status.models[0].decision if status else None
    return (found.state, found.detail) if found else ("", "")


def test_a_command_gets_replicas_when_the_load_rises_and_loses_a_victim_once_it_is_drained(rig: Rig) -> None:
    agent = rig.agent(config(rig, "a"), "a")
    agent.wait_ready()
    (rig.directory / "decode.json").write_text(json.dumps([["d1", "d2"], []]), "utf-8")
    (rig.directory / "prefill.json").write_text(json.dumps([["p1"], []]), "utf-8")
    scaler = subprocess.Popen([sys.executable, "-m", "loadline", "scaler", "exec", "--config", str(write_config(rig))])

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
            await agent_fleet.add("decode", "d1", "d2")
            await agent_fleet.add("prefill", "p1")
            agent_fleet.load(kv=0.97)
            await until(lambda: workers(rig) == ["d1", "d2", "d3"], "a third worker")
            agent_fleet.load(kv=0.7)
            await agent_fleet.add("decode", "d3")
            await until(lambda: newest(agent_fleet)[0] == "applied", "the decision is done")
            agent_fleet.load(kv=0.1)
            await until(lambda: any(worker.drain for worker in agent_fleet.workers.values()), "a drain")
            [victim] = [worker for worker in agent_fleet.workers.values() if worker.drain]
            await until(lambda: newest(agent_fleet) == ("accepted", f"decode: {victim.name} must drain"), "its reason")
            assert len(workers(rig)) == 3
            agent_fleet.load(kv=0.7)
            victim.may_leave.set()
            await until(lambda: victim.name not in workers(rig), "the victim is gone")
            assert len(workers(rig)) == 2
            await until(lambda: newest(agent_fleet)[0] == "applied", "the decision is done")

    try:
        asyncio.run(scenario())
        scaler.terminate()
        assert scaler.wait(60) == 0
    finally:
        scaler.kill()
        scaler.wait()


def write_programs(directory: Path) -> None:
    """Write the programs of the guide, and those that they call."""
    guide = DOCS / "how-to" / "scale-with-a-command.md"
    texts = [*blocks(guide, "sh"), *blocks(guide, "toml")]
    names = dict(zip(("scale.sh", "apply.sh", "exec.toml"), texts, strict=True))
    for name, text in (names | {"docker": DOCKER, "nats": NATS_CLI}).items():
        (directory / name).write_text(text, "utf-8")
        (directory / name).chmod(0o755)


@pytest.fixture
def guided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_programs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STATE", str(tmp_path))
    return tmp_path


def test_the_command_of_the_guide_sets_replicas(guided: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "loadline", "scaler", "exec", *arguments, "--config", "exec.toml"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert run("validate").returncode == 0
    done = run("set", "llama", "decode", "2", "--wait", "60")
    assert (done.returncode, done.stdout) == (0, "llama decode: 2 replicas requested\n"), done.stderr
    assert (guided / "decode").read_text("utf-8") == "2\n"
    assert run("status").stdout.splitlines()[1].split() == ["llama", "decode", "2", "-", "-"]
    (guided / "docker").write_text("#!/bin/sh\nexit 125\n", "utf-8")
    failed = run("status")
    assert failed.returncode == 1, "a failure is no empty pool"
    assert "exit code 125" in failed.stderr


def test_the_loop_of_the_guide_applies_and_answers_decisions(
    guided: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", nats_url)
    subjects = Subjects("loadline")
    answers: list[DecisionApplied] = []
    wanted = decision(1, 7, PoolTarget("decode", "decode", 3, 2, (Victim("d1", 1),)), model="llama")

    async def scenario() -> None:
        bus = NatsBus(NatsKnobs(servers=(nats_url,)), name="test")
        await bus.connect(lambda _connected: None)
        await bus.subscribe(
            subjects.applied("llama"), lambda _, data: answers.append(msgspec.json.decode(data, type=DecisionApplied))
        )

        async def announce() -> bool:
            await bus.publish(subjects.decision("llama"), encode(wanted))
            await asyncio.sleep(0.1)
            return bool(answers)

        async with asyncio.timeout(SCENARIO_S):
            while not await announce():
                pass
        await bus.close()

    loop = subprocess.Popen(["./apply.sh"], start_new_session=True)
    try:
        asyncio.run(scenario())
    finally:
        os.killpg(loop.pid, signal.SIGKILL)
        loop.wait()
    assert (guided / "decode").read_text("utf-8") == "3\n"
    expected = DecisionApplied(
        "llama-1-7", "llama", 1, 7, "shell", "done", {"decode": 3}, victims={"decode": "unknown"}
    )
    assert answers[0] == expected
