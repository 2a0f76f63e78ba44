"""A flood of queries costs the agent neither leadership nor memory."""

import asyncio
import contextlib
import re
import socket
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from loadline.rig.rig import ChildAgent, Rig
from loadline.runtime.shared_answers import SHARED_S
from loadline.wire.codec import decode_as, encode
from loadline.wire.messages import ExplainRequest, OperatorReply, PauseCommand
from tests.support.agents import MODEL, AgentFleet, config, fleet
from tests.waiting import DEADLINE_S, SCENARIO_S, until

pytestmark = pytest.mark.process

BURST = 20_000
SCRAPES, CONNECTIONS = 300, 30
GROWTH_KB_MAX = 60_000


def burst(rig: Rig, subject: str, payload: bytes) -> None:
    """Send requests from a new connection, whose replies go to an inbox that has a subscriber."""
    with socket.create_connection(("127.0.0.1", rig.nats.port), timeout=10) as wire:
        frame = b"PUB %b _INBOX_viewer.x %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)
        wire.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n' + frame * BURST + b"PING\r\n")
        while b"PONG" not in wire.recv(65_536):
            pass


def metric(agent: ChildAgent, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", agent.get("/metrics")[1], re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def read_body(answer: BinaryIO) -> bytes:
    size = next(int(line.split()[1]) for line in answer if line.lower().startswith(b"content-length:"))
    while answer.readline() != b"\r\n":
        pass
    return answer.read(size)


def peak_kb(agent: ChildAgent) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{agent.process.pid}/status").read_text("ascii"))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    ("method", "payload"), [("status", b""), ("explain", encode(ExplainRequest(model=MODEL))), ("decisions", b"")]
)
def test_a_burst_of_queries(rig: Rig, method: str, payload: bytes) -> None:
    agent = rig.agent(config(rig, "a"), "a")
    agent.wait_ready()

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        leader = agent_fleet.observer.leader()
        assert leader is not None
        before_kb = peak_kb(agent)
        replies: list[bytes] = []
        await agent_fleet.bus.subscribe("_INBOX_viewer.>", lambda _subject, data: replies.append(data))
        await asyncio.to_thread(burst, rig, f"loadline.v1.api.{method}", payload)
        assert (await asyncio.to_thread(agent.get, "/healthz"))[0] == 200
        command = encode(PauseCommand(MODEL, "operator"))
        reply = decode_as(OperatorReply, await agent_fleet.bus.request("loadline.v1.api.pause", command, DEADLINE_S))
        assert isinstance(reply, OperatorReply)
        assert reply.accepted
        assert await agent_fleet.bus.request("loadline.v1.api.status", b"", DEADLINE_S), (
            "another client shares the queue"
        )
        await agent_fleet.bus.request("loadline.v1.api.resume", command, DEADLINE_S)
        agent_fleet.load(kv=0.97)
        await until(lambda: agent_fleet.observer.desired().get("decode", 0) >= 3)
        now_leads = agent_fleet.observer.leader()
        assert now_leads is not None
        assert now_leads.epoch == leader.epoch, "the agent still leads"
        dropped = metric(agent, "loadline_requests_dropped_total")
        assert 0.95 * BURST < dropped < BURST
        assert 0 < len(replies) < BURST - dropped + 1
        assert peak_kb(agent) - before_kb < GROWTH_KB_MAX

    async def run() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
            await scenario(agent_fleet)

    asyncio.run(run())


def test_a_burst_of_scrapes_is_rendered_once_in_200_ms(rig: Rig) -> None:
    agent = rig.agent(config(rig, "a"), "a")
    agent.wait_ready()
    began_s, bodies = time.monotonic(), []
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", agent.port)
        wires = [stack.enter_context(socket.create_connection(address, timeout=DEADLINE_S)) for _ in range(CONNECTIONS)]
        answers = [stack.enter_context(wire.makefile("rb")) for wire in wires]
        for _ in range(SCRAPES // CONNECTIONS):
            for wire in wires:
                wire.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            bodies += [read_body(lines) for lines in answers]
    uptimes = {re.findall(rb"^loadline_uptime_seconds (\S+)$", body, re.MULTILINE)[0] for body in bodies}
    assert len(uptimes) <= 1 + (time.monotonic() - began_s) / SHARED_S
