"""Permissions of deploy/nats/loadline.conf on a real nats-server: each role can do its work and nothing else."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import nats
import pytest

from loadline.adapters.nats_bus import NatsBus
from loadline.client.frontend import FrontendClient
from loadline.client.scaler import ScalerClient
from loadline.client.worker import WorkerClient
from loadline.config import NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.status import AgentStatus
from loadline.errors import BusUnavailable
from loadline.rig.server_processes import EtcdServer, NatsServer
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand, DrainOrder, DrainReport, OperatorReply
from loadline.wire.subjects import Subjects
from tests.support.loadline_process import running_loadline
from tests.support.secured import NATS_FILE, PASSWORD, etcd_login, nats_login, secure_etcd, secured_nats
from tests.waiting import SCENARIO_S, until, until_async

pytestmark = pytest.mark.process

SUBJECTS = Subjects("loadline")
WORKER_KINDS = ("load", "drain", "drained", "migrate", "migration")
METHODS = ("status", "explain", "decisions", "pause", "resume", "drain", "announce")
MIGRATION_METHODS = ("status", "explain", "pause", "resume")
INBOXES = ("agent", "scaler-llama", "observed-llama", "operator", "viewer", "worker-llama-aggregated")
# One subject of each kind, with own and other names.
UNIVERSE = (
    *(
        f"loadline.v1.{kind}.{model}.{pool}.w-1"
        for kind in WORKER_KINDS
        for model in ("llama", "other")
        for pool in ("prefill", "decode", "aggregated")
    ),
    *(SUBJECTS.by_name(kind, "w-1") for kind in WORKER_KINDS),
    *(SUBJECTS.traffic(model, "frontend-1") for model in ("llama", "other")),
    *(SUBJECTS.decision(model) for model in ("llama", "other")),
    *(SUBJECTS.applied(model) for model in ("llama", "other")),
    *(
        f"loadline.v1.streams.{model}.{kind}.w-1"
        for model in ("llama", "other")
        for kind in ("report", "stop", "claim", "room", "handover")
    ),
    SUBJECTS.status("agent-1"),
    *map(SUBJECTS.api, METHODS),
    *(SUBJECTS.api(method, "migration") for method in MIGRATION_METHODS),
    *(f"_INBOX_{role}.x" for role in INBOXES),
    *("somewhere.else", "$SYS.REQ.SERVER.PING", "$JS.API.INFO", "_INBOX.other", "$SRV.PING"),
)
# Role -> patterns that it may publish; all other subjects of the universe are denied.
MAY_PUBLISH: dict[str, tuple[str, ...]] = {
    "agent": (
        *("loadline.v1.decision.*", "loadline.v1.drain.>", "loadline.v1.migrate.>", "loadline.v1.status.*"),
        *("loadline.v1.api.status", "loadline.v1.api.migration-status"),
    ),
    **{
        f"worker-llama-{pool}": tuple(f"loadline.v1.{kind}.llama.{pool}.*" for kind in ("load", "drained", "migration"))
        for pool in ("prefill", "decode")
    },
    "worker-llama-aggregated": (
        *(f"loadline.v1.{kind}.llama.aggregated.*" for kind in ("load", "drained", "migration")),
        *(f"loadline.v1.streams.llama.{kind}.*" for kind in ("stop", "claim", "room", "handover")),
    ),
    "frontend-llama": ("loadline.v1.traffic.llama.*",),
    "source-llama": (
        *(f"loadline.v1.{kind}.llama.>" for kind in ("load", "drained", "migration")),
        "loadline.v1.traffic.llama.*",
    ),
    "gateway-llama": ("loadline.v1.traffic.llama.*", "loadline.v1.streams.llama.report.*"),
    "scaler-llama": ("loadline.v1.applied.llama", "loadline.v1.api.announce"),
    "observed-llama": ("loadline.v1.applied.llama", "loadline.v1.api.announce"),
    "operator": ("loadline.v1.api.*", "$SRV.>"),
    "viewer": tuple(
        f"loadline.v1.api.{method}"
        for method in ("status", "explain", "decisions", "migration-status", "migration-explain")
    ),
}
# Role -> patterns that it may subscribe to.
MAY_SUBSCRIBE: dict[str, tuple[str, ...]] = {
    "agent": (
        *(f"loadline.v1.{kind}.>" for kind in ("load", "traffic", "applied", "drained", "migration")),
        *("loadline.v1.api.*", "$SRV.>", "_INBOX_agent.>"),
    ),
    **{
        f"worker-llama-{pool}": tuple(f"loadline.v1.{kind}.llama.{pool}.*" for kind in ("drain", "migrate"))
        for pool in ("prefill", "decode")
    },
    "worker-llama-aggregated": (
        *(f"loadline.v1.{kind}.llama.aggregated.*" for kind in ("drain", "migrate")),
        *(f"loadline.v1.streams.llama.{kind}.*" for kind in ("report", "room", "handover")),
        "_INBOX_worker-llama-aggregated.>",
    ),
    "frontend-llama": (),
    "source-llama": tuple(f"loadline.v1.{kind}.llama.>" for kind in ("drain", "migrate")),
    "gateway-llama": (
        *("loadline.v1.load.llama.>", "loadline.v1.streams.llama.stop.*", "loadline.v1.streams.llama.claim.*"),
    ),
    "scaler-llama": (
        *("loadline.v1.decision.llama", "loadline.v1.drained.llama.>", "loadline.v1.drained.*"),
        "_INBOX_scaler-llama.>",
    ),
    "observed-llama": (
        *("loadline.v1.decision.llama", "loadline.v1.drained.llama.>", "loadline.v1.drained.*"),
        *("loadline.v1.status.>", "_INBOX_observed-llama.>"),
    ),
    "operator": ("loadline.v1.>", "_INBOX_operator.>"),
    "viewer": ("loadline.v1.decision.*", "loadline.v1.status.*", "_INBOX_viewer.>"),
}


def matches(pattern: str, subject: str) -> bool:
    """Return True if a subject matches a pattern with ``*`` and a final ``>``."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
    return len(wanted) == len(tokens) and all(want in {"*", token} for want, token in zip(wanted, tokens, strict=True))


def divided(patterns: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the subjects of the universe that match one of the patterns, and all others."""
    allowed = [subject for subject in UNIVERSE if any(matches(pattern, subject) for pattern in patterns)]
    return allowed, [subject for subject in UNIVERSE if subject not in allowed]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with secured_nats(tmp_path_factory.mktemp("nats") / "server") as running:
        yield running


@contextlib.asynccontextmanager
async def bus_for(knobs: NatsKnobs) -> AsyncIterator[NatsBus]:
    bus = NatsBus(knobs, name="test")
    try:
        async with asyncio.timeout(SCENARIO_S):
            await bus.connect(lambda _connected: None)
            assert bus.connected, bus.last_error
            yield bus
    finally:
        await bus.close()


async def refused(bus: NatsBus, count: int, what: str) -> None:
    await until(lambda: bus.denied >= count, f"{count} refusals, for {what}")
    assert bus.denied == count, what


@pytest.mark.parametrize("role", MAY_PUBLISH)
def test_each_role_may_publish_its_subjects_only(server: NatsServer, tmp_path: Path, role: str) -> None:
    async def scenario() -> None:
        allowed, forbidden = divided(MAY_PUBLISH[role])
        async with bus_for(nats_login(server, role, tmp_path)) as bus:
            for subject in allowed:
                await bus.publish(subject, b"{}")
            # The server checks in order: at the first refusal it has accepted all of the above.
            for number, subject in enumerate(forbidden, start=1):
                await bus.publish(subject, b"{}")
                await refused(bus, number, subject)

    asyncio.run(scenario())


def test_a_reply_goes_to_an_inbox_only(server: NatsServer, tmp_path: Path) -> None:
    """A server lets a viewer name any subject for the reply, which the agent may then publish."""
    subjects = (SUBJECTS.decision("llama"), SUBJECTS.drain("llama", "decode", "w-1"), SUBJECTS.api("pause"))
    forged = (*subjects, "$JS.API.INFO")

    async def answer(_payload: bytes) -> bytes:
        return b"{}"

    async def scenario() -> None:
        async with (
            bus_for(nats_login(server, "agent", tmp_path)) as agent,
            bus_for(nats_login(server, "operator", tmp_path)) as operator,
            await nats.connect(server.url, user="viewer", password=PASSWORD) as viewer,
        ):
            heard: list[str] = []
            await operator.subscribe("loadline.v1.>", lambda subject, _data: heard.append(subject))
            await agent.answer(SUBJECTS.api("status"), answer)
            for reply in forged:
                await viewer.publish(SUBJECTS.api("status"), b"", reply=reply)
            await viewer.flush()
            await until(lambda: agent.requests_dropped == len(forged), "the requests are refused")
            assert await operator.request(SUBJECTS.api("status"), b"", SCENARIO_S) == b"{}"
            assert set(heard) == {SUBJECTS.api("status")}

    asyncio.run(scenario())


@pytest.mark.parametrize("role", MAY_SUBSCRIBE)
def test_each_role_may_subscribe_to_its_subjects_only(server: NatsServer, tmp_path: Path, role: str) -> None:
    async def scenario() -> None:
        allowed, forbidden = divided(MAY_SUBSCRIBE[role])
        async with bus_for(nats_login(server, role, tmp_path)) as bus:
            for subject in (*MAY_SUBSCRIBE[role], *allowed):
                await bus.subscribe(subject, lambda _subject, _data: None)
            for number, subject in enumerate((*forbidden, ">", "$SYS.>"), start=1):
                await bus.subscribe(subject, lambda _subject, _data: None)
                await refused(bus, number, subject)

    asyncio.run(scenario())


def test_a_client_without_a_login_is_refused(server: NatsServer) -> None:
    async def scenario() -> None:
        bus = NatsBus(NatsKnobs(servers=(server.url,)), name="nobody")
        await bus.connect(lambda _connected: None)
        assert not bus.connected
        assert "authorization" in bus.last_error.lower()
        await bus.close()

    asyncio.run(scenario())


def test_a_worker_with_its_own_user_publishes_for_itself_only(tmp_path: Path) -> None:
    """Users per worker, as the comment in the file describes for workers that do not trust each other."""
    text = NATS_FILE.read_text("utf-8")
    start = text.index('user: "worker-llama-decode"')
    end = text.index('user: "worker-llama-aggregated"')
    narrowed = text[start:end].replace(".*", ".decode-1")
    assert narrowed.count(".decode-1") == 5

    async def scenario(server: NatsServer) -> None:
        async with bus_for(nats_login(server, "worker-llama-decode", tmp_path)) as bus:
            await bus.publish(SUBJECTS.load("llama", "decode", "decode-1"), b"{}")
            await bus.publish(SUBJECTS.drained("llama", "decode", "decode-1"), b"{}")
            await bus.subscribe(SUBJECTS.drain("llama", "decode", "decode-1"), lambda _subject, _data: None)
            others = (
                SUBJECTS.load("llama", "decode", "decode-2"),
                SUBJECTS.drained("llama", "decode", "decode-2"),
                SUBJECTS.migration("llama", "decode", "decode-2"),
            )
            for number, subject in enumerate(others, start=1):
                await bus.publish(subject, b"{}")
                await refused(bus, number, subject)
            await bus.subscribe(SUBJECTS.drain("llama", "decode", "decode-2"), lambda _subject, _data: None)
            await refused(bus, 4, "another worker's drain commands")

    with secured_nats(tmp_path / "server", text[:start] + narrowed + text[end:]) as server:
        asyncio.run(scenario(server))


def test_a_prefill_worker_cannot_end_the_drain_of_a_decode_worker(server: NatsServer, tmp_path: Path) -> None:
    """Neither a report in its own pool nor one with an unknown incarnation ends the drain."""

    async def scenario() -> None:
        victim, own = ("llama", "decode", "decode-1"), ("llama", "prefill", "decode-1")
        knobs = nats_login(server, "scaler-llama", tmp_path / "scaler")
        async with (
            ScalerClient("test", ["llama"], nats=knobs) as scaler,
            bus_for(nats_login(server, "worker-llama-prefill", tmp_path / "forger")) as forger,
            bus_for(nats_login(server, "worker-llama-decode", tmp_path / "worker")) as worker,
        ):
            for incarnation in (1, 2**53):
                await forger.publish(SUBJECTS.drained(*own), encode(DrainReport(*victim, incarnation)))
                await forger.publish(SUBJECTS.drained(*own), encode(DrainReport(*own, incarnation)))
                await worker.publish(SUBJECTS.drained(*victim), encode(DrainReport(*victim, 2**53)))
            for number, subject in enumerate(
                (SUBJECTS.drained(*victim), SUBJECTS.by_name("drained", "decode-1")), start=1
            ):
                await forger.publish(subject, encode(DrainReport(*victim, 1)))
                await refused(forger, number, subject)
            await until(lambda: scaler.drained(*own), "the forger's report about itself")
            await until(lambda: scaler.ignored == 5, "the others are refused")
            assert not scaler.drained(*victim)
            await worker.publish(SUBJECTS.drained(*victim), encode(DrainReport(*victim, 1)))
            assert await scaler.wait_drained(*victim, 30, incarnation=1)

    asyncio.run(scenario())


CONFIG = """
[agent]
name = "agent-1"
log_format = "json"
[nats]
servers = ["{nats.servers[0]}"]
user = "{nats.user}"
password_file = "{nats.password_file}"
inbox_prefix = "{nats.inbox_prefix}"
[etcd]
endpoints = ["{etcd.endpoints[0]}"]
user = "{etcd.user}"
password_file = "{etcd.password_file}"
[http]
port = 0
[fleet]
stale_after_ms = 2000
[[models]]
name = "llama"
[[models.pools]]
name = "decode"
role = "decode"
replicas_min = 2
"""


def loadline(*arguments: str) -> str:
    command = [sys.executable, "-m", "loadline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


async def is_served(bus: NatsBus) -> bool:
    """Return True if an agent shows a worker, traffic and an applied decision to a user of NATS."""
    try:
        reply = await bus.request(SUBJECTS.api("status"), b"{}", 2)
    except BusUnavailable:
        return False
    for model in msgspec.json.decode(reply, type=AgentStatus).models:
        applied = model.decision is not None and model.decision.state == "applied"
        return applied and model.pools[0].fresh == 1 and model.traffic.requests_per_s is not None
    return False


def test_all_parts_can_do_their_work(tmp_path: Path) -> None:
    """Run agent, clients and command line with these users of NATS and those of etcd."""

    async def emptied(_command: DrainCommand) -> None: ...

    def configured(role: str, nats: NatsServer, etcd: EtcdServer) -> Path:
        path = tmp_path / f"{role}.toml"
        login = nats_login(nats, role, tmp_path / role)
        path.write_text(CONFIG.format(nats=login, etcd=etcd_login(etcd, f"loadline-{role}", tmp_path / role)))
        return path

    async def scenario(nats: NatsServer, etcd: EtcdServer) -> None:
        record = WorkerRecord("llama", "decode", "decode-1", "decode", incarnation=1)
        async with contextlib.AsyncExitStack() as stack:
            buses = {
                role: await stack.enter_async_context(bus_for(nats_login(nats, role, tmp_path / role)))
                for role in ("worker-llama-decode", "frontend-llama", "scaler-llama", "operator", "viewer")
            }
            worker = WorkerClient(
                record,
                bus=buses["worker-llama-decode"],
                etcd=etcd_login(etcd, "loadline-worker-llama", tmp_path),
                sample=lambda: WorkerSample(0, 0, waiting_requests=0, running_requests=0, kv_usage_ratio=0.7),
                on_drain=emptied,
                report_interval_ms=200,
            )
            await stack.enter_async_context(worker)
            frontend = FrontendClient("llama", "frontend-1", bus=buses["frontend-llama"], interval_ms=200)
            await stack.enter_async_context(frontend)
            scaler = await stack.enter_async_context(ScalerClient("scaler", ["llama"], bus=buses["scaler-llama"]))
            await worker.ready()

            order = await anext(scaler)  # the minimum is two workers, and there is one
            assert order.targets["decode"].replicas == 2
            await scaler.accept(order)
            await scaler.complete(order, {"decode": 2})

            await until_async(lambda: is_served(buses["viewer"]), "worker, traffic and decision in the status")
            operator = configured("operator", nats, etcd)
            assert "agent agent-1" in await asyncio.to_thread(loadline, "status", "--config", str(operator))
            assert "replicas_min" in await asyncio.to_thread(loadline, "explain", "--config", str(operator))

            order_to_drain = encode(DrainOrder("llama", "decode", "decode-1"))
            reply = await buses["operator"].request(SUBJECTS.api("drain"), order_to_drain, 2)
            assert msgspec.json.decode(reply, type=OperatorReply).accepted
            await asyncio.wait_for(worker.drained.wait(), 60)
            assert await scaler.wait_drained("llama", "decode", "decode-1", 30, incarnation=1)
            pause = await asyncio.to_thread(loadline, "pause", "llama", "--config", str(operator))
            assert "llama is paused" in pause
            assert {role: bus.denied for role, bus in buses.items()} == dict.fromkeys(buses, 0)

    log = tmp_path / "agent.log"
    with secured_nats(tmp_path / "nats") as nats, EtcdServer(tmp_path / "etcd") as etcd:
        secure_etcd(etcd, tmp_path / "passwords", "default", "llama")
        with running_loadline(log, "run", "--config", str(configured("agent", nats, etcd))):
            asyncio.run(scenario(nats, etcd))
    output = log.read_text("utf-8").lower()
    assert "permissions violation" not in output
    assert "permission denied" not in output
