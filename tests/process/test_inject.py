"""tools/inject.py against real nats-server and etcd."""

import asyncio
import gzip
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.events import LoadReported, TrafficReported
from loadline.rig.server_processes import EtcdServer, NatsServer
from loadline.wire.codec import Codec, Rejected, WireEvent, decode_worker_record, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand
from loadline.wire.subjects import Subjects
from tests.support.secured import nats_login, password_file, secured_nats
from tests.waiting import DEADLINE_S, until, until_async

pytestmark = pytest.mark.process
TOOL = Path(__file__).parents[2] / "tools/inject.py"
SUBJECTS = Subjects("loadline")


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


async def started(*args: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, str(TOOL), *args, stdout=pipe, stderr=pipe)


async def finished(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    return process.returncode, (out + err).decode()


@asynccontextmanager
async def listening(
    url: str, login: NatsKnobs | None = None, subjects: tuple[str, ...] = ("loadline.v1.>",)
) -> AsyncIterator[tuple[NatsBus, list[WireEvent | Rejected]]]:
    bus, received, codec = (
        NatsBus(login or NatsKnobs(servers=(url,)), name="test"),
        list[WireEvent | Rejected](),
        Codec(SUBJECTS, 262_144),
    )
    await bus.connect(lambda _connected: None)
    try:
        for wanted in subjects:
            await bus.subscribe(wanted, lambda subject, data: received.append(codec.decode(subject, data)))
        yield bus, received
    finally:
        await bus.close()


def test_one_sample_is_published_for_a_worker(nats: NatsServer) -> None:
    async def scenario() -> None:
        async with listening(nats.url) as (_, received):
            flags = ("--worker", "w-7", "--incarnation", "5", "--kv-usage-ratio", "0.95", "--waiting-requests", "3")
            assert await finished(await started("sample", "--nats", nats.url, *flags)) == (
                0,
                "1 samples of w-7 sent, 0 could not be sent\n",
            )
            await until(lambda: received, "the sample is received")
            (event,) = received
            assert isinstance(event, LoadReported)
            assert (event.model, event.pool, event.worker, event.incarnation) == ("llama", "decode", "w-7", 5)
            assert (event.samples[0].kv_usage_ratio, event.samples[0].waiting_requests) == (0.95, 3)

    asyncio.run(scenario())


def test_a_ramp_is_published_for_a_registered_worker_which_then_deregisters(nats: NatsServer, etcd: EtcdServer) -> None:
    async def scenario() -> None:
        store = EtcdStore(EtcdKnobs(endpoints=(etcd.url,)))
        try:
            async with listening(nats.url) as (_, received):
                flags = (
                    "--register",
                    "--field",
                    "waiting-requests",
                    "--to",
                    "8",
                    "--period",
                    "0.4",
                    "--hz",
                    "20",
                    "--for",
                    "0.6",
                )
                process = await started("shape", "ramp", "--nats", nats.url, "--etcd", etcd.url, *flags)
                code, text = await finished(process)
                assert code == 0, text
                await until(lambda: len(received) >= 13, "all samples are received")
                samples = [event.samples[0] for event in received if isinstance(event, LoadReported)]
                assert [one.sequence for one in samples] == list(range(1, len(samples) + 1))
                values = [one.waiting_requests for one in samples if one.waiting_requests is not None]
                assert values == sorted(values)
                assert (values[0], values[-1]) == (0, 8)
            assert (await store.read(Keys("default").workers)).entries == [], "the lease was revoked"
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_drain_ends_a_registered_worker(nats: NatsServer, etcd: EtcdServer) -> None:
    async def scenario() -> None:
        store, keys = EtcdStore(EtcdKnobs(endpoints=(etcd.url,))), Keys("default")

        async def entries() -> int:
            return len((await store.read(keys.workers)).entries)

        try:
            async with listening(nats.url) as (bus, received):
                flags = ("--register", "--role", "prefill", "--pool", "prefill", "--worker", "p-1")
                process = await started("sample", "--nats", nats.url, "--etcd", etcd.url, *flags)
                await until_async(entries, "the worker is registered")
                await until(lambda: received, "the worker reports")
                entry = (await store.read(keys.workers)).entries[0]
                record = decode_worker_record(keys.split(entry.key), entry.value)
                assert not isinstance(record, Rejected)
                assert (record.role, record.worker) == ("prefill", "p-1")
                command = DrainCommand("d", "llama", "prefill", "p-1", "prefill", record.incarnation, 1, 5_000)
                await bus.request(SUBJECTS.drain("llama", "prefill", "p-1"), encode(command), 5.0)
                code, text = await finished(process)
                assert code == 0, text
                assert await entries() == 0
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_trace_becomes_traffic_reports(nats: NatsServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    rows = [f"{index * 0.1:.1f},{100 + index},{10}" for index in range(20)]
    trace.write_bytes(gzip.compress("\n".join(["arrival_s,isl,osl", *rows, ""]).encode()))

    async def scenario() -> None:
        async with listening(nats.url) as (_, received):
            flags = ("--speed", "4", "--interval-ms", "100", "--frontend", "f")
            code, text = await finished(await started("trace", str(trace), "--nats", nats.url, *flags))
            assert code == 0, text

            def arrivals() -> int:
                return sum(event.sample.arrivals for event in received if isinstance(event, TrafficReported))

            await until(lambda: arrivals() == 20, "every arrival is reported")
            assert len(received) >= 3, "one report per interval"
            assert not any(isinstance(event, Rejected) for event in received)

    asyncio.run(scenario())


def test_a_signal_ends_the_tool_with_a_summary(nats: NatsServer) -> None:
    async def scenario() -> None:
        async with listening(nats.url) as (_, received):
            process = await started("shape", "sine", "--nats", nats.url, "--for", "600", "--hz", "50")
            await until(lambda: received, "the first sample is received")
            process.send_signal(signal.SIGINT)
            code, text = await finished(process)
            assert code == 0
            assert "samples of injected sent" in text

    asyncio.run(scenario())


def test_logins_of_the_shipped_permissions_report_for_their_role_only(etcd: EtcdServer, tmp_path: Path) -> None:
    password = password_file(tmp_path)

    def login(user: str) -> tuple[str, ...]:
        return "--nats", server.url, "--nats-user", user, "--nats-password-file", password

    async def scenario() -> None:
        agent = nats_login(server, "agent", tmp_path), ("loadline.v1.load.>", "loadline.v1.traffic.>")
        async with listening(server.url, *agent) as (_, received):
            worker, frontend = login("worker-llama-decode"), login("frontend-llama")
            flags = ("--register", "--etcd", etcd.url, "--kv-usage-ratio", "0.5", "--for", "0.01")
            assert await finished(await started("sample", *worker, *flags)) == (
                0,
                "1 samples of injected sent, 0 could not be sent\n",
            )
            assert (await finished(await started("traffic", *frontend, "--arrivals", "9")))[0] == 0
            await until(lambda: any(isinstance(one, TrafficReported) for one in received), "both are received")
            *loads, traffic = received
            assert [one.samples[0].kv_usage_ratio for one in loads if isinstance(one, LoadReported)][-1] == 0.5
            assert isinstance(traffic, TrafficReported)
            assert traffic.sample.arrivals == 9
            before = len(received)
            code, text = await finished(
                await started("sample", *worker, "--pool", "prefill", "--running-requests", "1")
            )
            assert code == 1
            assert text.startswith("inject: NATS refused")
            assert len(received) == before

    with secured_nats(tmp_path / "nats") as server:
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("sample", "--nats", "nats://127.0.0.1:1"), "cannot connect to NATS at nats://127.0.0.1:1"),
        (("sample", "--register", "--etcd", "http://127.0.0.1:1"), "127.0.0.1:1"),
        (("sample", "--kv-usage-ratio", "1.5"), "kv_usage_ratio"),
        (("trace", "/no/such/trace.csv"), "/no/such/trace.csv"),
    ],
)
def test_errors_are_printed_in_one_line(nats: NatsServer, args: tuple[str, ...], words: str) -> None:
    server = () if "--nats" in args else ("--nats", nats.url)

    async def scenario() -> None:
        code, text = await finished(await started(*args, *server))
        assert code == 1
        assert text.startswith("inject: ")
        assert words in text
        assert text.count("\n") == 1

    asyncio.run(scenario())
